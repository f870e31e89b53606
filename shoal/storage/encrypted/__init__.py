"""Encryption at rest: a storage that seals every row before RocksDB sees it, and the keys that it does so with."""
