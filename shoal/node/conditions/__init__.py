"""All that can be wrong with a node and its cluster: one table, which everything that tells people of trouble reads."""
