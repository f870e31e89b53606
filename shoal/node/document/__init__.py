"""Documents: live replicas, their snapshots, and overwritten values."""
