"""The HTTP server of the extender: routes, messages, certificates."""
