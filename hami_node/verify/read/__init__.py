"""What is read of the cluster, once, and cut down to what the checks look at."""
