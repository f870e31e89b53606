"""Single values: counters, registers, sets, maps and budgets."""
