"""Directories of nodes that are no members, for `shoal cluster`."""
