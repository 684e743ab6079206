"""The daemon for an hour: what it may lose or collect only slowly."""
