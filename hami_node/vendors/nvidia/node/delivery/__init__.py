"""Puts the limiter on the node: from a folder, verified, under a name that tells its content."""
