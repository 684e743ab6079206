"""The cards of this node: scanned, shaped by the settings, offered."""
