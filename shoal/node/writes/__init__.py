"""The write path: a request becomes one operation, once."""
