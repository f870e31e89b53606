"""Redaction of a space: what is replaced in a write before it is stored."""
