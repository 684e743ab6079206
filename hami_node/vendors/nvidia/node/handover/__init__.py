"""How a container gets its cards: the choice, the names, and CDI specs of our own."""
