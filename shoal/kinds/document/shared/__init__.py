"""Shared types in documents: those of the engine, with Python's positions and checked values."""
