"""Trials: one store, crashed again and again under load, and judged after each crash."""
