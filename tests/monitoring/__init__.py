"""What the tests of dashboards, rules and alerts share, and what writes the dashboards."""
