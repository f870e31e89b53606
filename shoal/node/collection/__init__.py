"""Garbage collection: removing the rows that deletions and prunes left behind, once that is safe."""
