"""Watches of durable changes, and presence."""
