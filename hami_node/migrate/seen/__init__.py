"""What is there: objects of the cluster, whose they are, who serves which node."""
