"""How a node serves requests about documents."""
