"""What this node keeps on its own disk: the ledger of grants, and small memories."""
