"""Documents: Yjs updates as rows, and what they build."""
