"""The protocol on the wire: names and codecs. Pure."""
