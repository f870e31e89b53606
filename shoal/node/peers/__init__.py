"""The node among its peers: replication, quorums, and rights to spend."""
