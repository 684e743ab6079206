"""The page in the browser: who holds what, who waits and why, live."""
