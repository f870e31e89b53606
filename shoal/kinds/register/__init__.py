"""Registers: one value each, with siblings if it was set concurrently."""
