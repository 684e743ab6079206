"""Which container kubelet means, what it may have, and the answer."""
