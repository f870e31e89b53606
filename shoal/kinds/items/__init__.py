"""Memory items: values under a namespace and a key, their indexes and searches."""
