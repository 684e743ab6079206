"""Simulated kubelet, API server and the demo that runs on them."""
