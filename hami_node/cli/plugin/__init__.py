"""The commands of `kubectl hami`: what they look at, how it is shown, and what completes names."""
