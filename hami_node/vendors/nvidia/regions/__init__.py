"""What region files hold and mean: layouts, use, feedback. Pure."""
