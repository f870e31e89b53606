"""Admission to nodes: certificates, tokens, and the rule for nodes that other machines can reach."""
