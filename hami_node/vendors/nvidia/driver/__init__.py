"""Where NVIDIA's driver is on the node, and its library."""
