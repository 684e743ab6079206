"""What stands on the wire: names and codecs. Pure."""
