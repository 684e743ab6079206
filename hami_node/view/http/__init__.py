"""Who is answered, and with what: addresses, headers, routes, files, the stream of changes."""
