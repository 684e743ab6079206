"""A vendor that the product has never heard of: one folder, as a real one would be."""
