"""The checks: each looks at one thing and says how it is."""
