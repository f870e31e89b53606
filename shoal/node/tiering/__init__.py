"""Chunks of threads that nobody uses, in an object store: moved there, fetched back, and deleted."""
