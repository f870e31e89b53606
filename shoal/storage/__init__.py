"""One `Storage` interface; RocksDB, and a memory reference that can forget unsynced writes."""
