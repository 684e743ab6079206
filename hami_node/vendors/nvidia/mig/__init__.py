"""Cards in MIG mode: what they can hold, which instance serves an ask, annotations. Pure."""
