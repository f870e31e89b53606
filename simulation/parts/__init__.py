"""Parts of a thread that agents use beside its checkpoints and its journal, each with what it owes."""
