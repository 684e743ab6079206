"""Whether an installation works: every part looked at from outside, read only but for the probe."""
