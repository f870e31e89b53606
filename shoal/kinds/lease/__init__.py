"""Leases on the quorum register: the one holder of a name, with a fencing number."""
