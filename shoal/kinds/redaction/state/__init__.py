"""Redaction, pure: the rules as they are recorded, and texts within packed values."""
