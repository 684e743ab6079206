"""The demo: daemons and extender at work on simulated cards."""
