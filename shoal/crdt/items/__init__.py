"""Memory items: values under a namespace and a key."""
