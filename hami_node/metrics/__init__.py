"""The metrics, and the HTTP server for them and for probes."""
