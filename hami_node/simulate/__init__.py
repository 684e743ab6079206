"""Simulated API server, kubelet and kube-scheduler, for the demo and the tests."""
