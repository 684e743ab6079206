"""What the pods of this node hold: the ledger, and who has ended."""
