"""Memory items and their searches."""
