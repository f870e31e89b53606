"""Standing rules of a space: which checkpoints, events and threads may go by themselves."""
