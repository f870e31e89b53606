"""Files: bytes of any size beside a thread's checkpoints, in chunks that each thread has once."""
