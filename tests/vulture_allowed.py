"""Names that only others call (grpc, click, protocols): not dead, though nobody here uses them."""
