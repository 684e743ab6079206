"""hami-node: share GPU and Neuron accelerators between containers of one Kubernetes node."""

__version__ = "0.1.0"
