"""Redaction on a node: the rules that run, the hooks that are asked, and the writes that they see."""
