"""How a node serves requests about journals."""
