"""The read path: reads, several as one, and listings."""
