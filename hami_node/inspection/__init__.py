"""What nodes publish and pods hold or want, decoded for people. Pure: objects in, values out."""
