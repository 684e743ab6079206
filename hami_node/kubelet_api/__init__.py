"""Generated from protos/ by `make protos`: kubelet's device plugin and pod resources APIs."""
