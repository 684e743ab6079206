"""Groups of pods that get their cards all or nothing."""
