"""The handles of memory items, which users hold."""
