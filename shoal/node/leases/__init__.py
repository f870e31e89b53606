"""Leases of a node's clients, on the quorum register."""
