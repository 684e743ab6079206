"""Removes what ended containers and old limiters leave on the node."""
