"""Lists and watches of the API server, and copies of its objects kept in memory."""
