"""The handle of a thread and its parts: checkpoints, branches, history, steps, status, journal, queues."""
