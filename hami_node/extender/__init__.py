"""The scheduler extender and the webhook."""
