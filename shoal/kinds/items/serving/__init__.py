"""How a node serves requests about memory items."""
