"""What the node's daemon does with NVIDIA cards: offers, reports and hands them to containers."""
