"""How a node serves requests about threads."""
