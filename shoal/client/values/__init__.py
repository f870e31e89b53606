"""Counters, registers, sets, maps and budgets."""
