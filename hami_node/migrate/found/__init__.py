"""What is wrong, what to know, and what runs."""
