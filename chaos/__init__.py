"""Chaos: real nodes, real clients, real kills, and a verdict. `python -m chaos run --help`."""
