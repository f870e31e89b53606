"""What crosses a connection, pure: requests, replies, frames. `docs/PROTOCOL.md` has the bytes."""
