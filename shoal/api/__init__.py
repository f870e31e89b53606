"""The public surface of a node: REST for people, one WebSocket for clients. Everything stands on a `Session`."""
