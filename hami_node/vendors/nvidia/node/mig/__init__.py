"""MIG on a node: instances made and removed for pods, and their record."""
