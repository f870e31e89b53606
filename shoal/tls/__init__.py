"""TLS: a cluster's certificates, and what a node and a client make of them."""
