"""The judges: the history of what clients did and saw, and the checkers of the invariants of docs/VERIFICATION.md."""
