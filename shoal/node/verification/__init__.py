"""Verification: rows against the log, against those of peers, and their repair."""
