"""Presence: the agents and editors of a space or a document, which is not durable."""
