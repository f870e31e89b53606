"""How a node serves requests about steps and statuses."""
