"""The way over from HAMi or NVIDIA's plugin: what runs, what collides, what to do."""
