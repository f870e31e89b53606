"""The steps of a thread, so that no effect is repeated after a crash, and the thread's status."""
