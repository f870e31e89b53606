"""Conflict-free replicated data types, pure: no I/O, no clock, no randomness.

A type is a set of functions over `Rows` (the rows of one object) and a
`Stamp` (when and by whom an operation was issued). `apply` is total and, under
causal delivery, commutative and idempotent by dot. The rows themselves are the
canonical form: replicas that applied the same operations hold equal rows, byte
for byte.
"""
