"""What containers and cards really use, pass by pass."""
