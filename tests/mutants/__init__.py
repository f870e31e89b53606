"""Planted bugs that the simulator has to find: `python -m tests.mutants`, or `make mutants`.

Law: production code has no switch for any of them. Each is a patch of production classes,
in force while its context is open, and names the invariants of which it breaks at least one.
"""
