"""Shoal under other frameworks' interfaces: each package here imports the client and one SDK."""
