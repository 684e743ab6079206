"""The extender's view of the cluster, and the reservations not yet stored."""
