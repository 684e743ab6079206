"""The daemon's own parts: inventory, reporting, kubelet, allocation."""
