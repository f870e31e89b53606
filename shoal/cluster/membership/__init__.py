"""The members of a cluster: whether nodes agree on them, and how the list changes."""
