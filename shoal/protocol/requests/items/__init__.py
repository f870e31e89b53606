"""Requests of memory items and of their indexes."""
