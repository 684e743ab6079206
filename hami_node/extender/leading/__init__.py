"""Which replica decides, since when, and where it is found."""
