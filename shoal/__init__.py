"""Shoal: a durable, replicated state layer for AI agents."""
