"""Streams: one order for all readers, on journals of threads (docs/decisions/0091-durable-streams.md)."""
