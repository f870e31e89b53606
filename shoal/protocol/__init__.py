"""The messages between client and node, without I/O: requests, replies, frames. `docs/PROTOCOL.md` has the bytes."""
