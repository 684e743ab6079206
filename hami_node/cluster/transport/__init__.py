"""How requests reach the API server: credentials, connections, sending, kinds of failure."""
