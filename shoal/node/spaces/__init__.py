"""How spaces share a node: turns on its loop, and quotas."""
