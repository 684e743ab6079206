"""Who talks to the drivers."""
