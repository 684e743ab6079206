"""Who talks to Kubernetes' API server."""
