"""The limiter as this node serves it: its files and versions, and the files of containers."""
