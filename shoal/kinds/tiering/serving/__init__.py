"""The node's side of tiering."""
