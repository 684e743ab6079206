"""What `make check` tests: words, documents, layout, what is released, what the daemon loads."""
