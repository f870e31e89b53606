"""How a node serves requests about leases."""
