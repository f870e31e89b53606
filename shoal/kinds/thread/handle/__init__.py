"""The handles of threads, which users hold."""
