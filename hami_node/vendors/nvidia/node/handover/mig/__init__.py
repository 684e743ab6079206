"""How MIG instances are handed over: the driver's capabilities, and a CDI spec for each."""
