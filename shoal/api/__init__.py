"""The public surface of a node: REST, and one WebSocket for client libraries. All of it uses a `Session`."""
