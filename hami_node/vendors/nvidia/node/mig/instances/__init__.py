"""The instances of this node one by one: their record, their states, and who works on them."""
