"""The clients of the Kubernetes API server."""
