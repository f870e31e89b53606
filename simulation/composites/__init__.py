"""Composites, by what goes wrong in them: see `simulation.composing`."""
