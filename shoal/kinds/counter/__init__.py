"""Counters that every node can add to."""
