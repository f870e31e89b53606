"""Who is let in: certificates, tokens, and the rule for nodes that other machines can reach."""
