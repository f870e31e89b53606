"""Schemas of states: JSON Schemas that nodes enforce, and what a thread declares in its own process."""
