"""The scheduling rules over thousands of nodes: summaries, order, explanations. Pure."""
