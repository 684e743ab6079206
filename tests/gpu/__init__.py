"""What only a real NVIDIA card shows: `make gpu`."""
