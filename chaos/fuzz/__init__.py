"""Anything that may be sent to a node, before a token is shown and after, at any size: `python -m chaos fuzz`."""
