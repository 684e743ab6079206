"""Pods that are not bound: what is reserved or held for them, and when that ends."""
