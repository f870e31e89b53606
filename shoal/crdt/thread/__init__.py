"""A thread: checkpoints and branches, journal, labels, queues, steps, status."""
