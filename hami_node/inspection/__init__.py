"""What nodes publish and pods hold or request, decoded for people. Pure: no I/O."""
