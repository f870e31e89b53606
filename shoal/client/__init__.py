"""The public client: handles over a `Session`, the same for an embedded store and for a node."""
