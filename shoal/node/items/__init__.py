"""Memory items: writes, indexes and searches."""
