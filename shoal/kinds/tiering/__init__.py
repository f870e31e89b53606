"""Tiering of a space: the chunks of threads that nobody used for long go to an object store, and come back on read."""
