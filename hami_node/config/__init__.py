"""The settings: declared once, read from their sources, checked, watched."""
