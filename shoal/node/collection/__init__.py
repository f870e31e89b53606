"""Garbage collection: what deletions and prunes leave behind, and when it goes."""
