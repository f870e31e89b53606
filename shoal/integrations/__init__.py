"""Shoal behind the interfaces of other frameworks: each package here imports the client and one SDK."""
