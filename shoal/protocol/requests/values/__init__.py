"""Requests of counters, registers, sets, maps and budgets."""
