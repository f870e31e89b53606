"""Statements of this node: it signs what it holds, keeps statements in a journal, and shows its logs."""
