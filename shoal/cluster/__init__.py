"""The replication protocol, pure: no I/O, no clock, no randomness; payloads are opaque bytes."""
