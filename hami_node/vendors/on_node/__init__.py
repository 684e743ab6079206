"""What a vendor does on a node: answers, limits, use, files and publications, as protocols."""
