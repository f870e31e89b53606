"""The quorum register of a node: its durable votes, and the reads and changes that it carries out."""
