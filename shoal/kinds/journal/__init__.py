"""The journal of a thread: events in one order, consumers, reducers and retention."""
