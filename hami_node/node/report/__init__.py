"""What this node reports to the API server and Prometheus."""
