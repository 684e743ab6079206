"""Carries out what the extender has approved for containers that run on this node."""
