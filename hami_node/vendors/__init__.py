"""Everything specific to a vendor's cards, with a folder for each vendor."""
