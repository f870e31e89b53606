"""The handles of documents, which users hold."""
