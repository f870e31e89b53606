"""The shipped testing kit: references, fault injectors and the checkers of the invariants."""
