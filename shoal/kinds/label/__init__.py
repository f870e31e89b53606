"""Labels, notes and the owner of a thread: names and small values beside its checkpoints."""
