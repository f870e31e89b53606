"""Composites, by what goes wrong in them: see `shoal.testing.simulation.composing`."""
