"""Which container a call of kubelet is for."""
