"""Retention on a node: what a rule lets go of a thread, and the task that carries the rules out."""
