"""A thread's requests: checkpoints and branches, journal, labels, queues, steps, status."""
