"""Values inside annotations and objects: JSON, quantities, numbers, times. Pure."""
