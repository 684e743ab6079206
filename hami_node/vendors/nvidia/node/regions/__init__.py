"""The region files of running containers: usage is read, limits and feedback are written."""
