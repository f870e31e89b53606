"""The clients of a run: agents that write and read, and record what they did and were shown."""
