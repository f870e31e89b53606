"""Requests of one thread: checkpoints and branches, journal, labels, queues, steps, status."""
