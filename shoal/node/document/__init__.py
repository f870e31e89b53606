"""Documents: live replicas, their snapshots, and what concurrent edits overwrote."""
