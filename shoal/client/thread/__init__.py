"""A thread as a handle, of parts: checkpoints, branches, history, steps, status, journal, queues."""
