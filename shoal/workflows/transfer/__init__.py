"""Exports of threads, spaces and whole stores as lines, and reading them back (docs/EXPORT.md)."""
