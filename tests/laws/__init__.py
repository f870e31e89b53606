"""The guards of laws: for each law that a module's first lines state, a line that holds it, and the test that fails without.

`python -m tests.laws`, or `make laws`, takes each line out in a copy of the tree, and sees the named test fail.

Law: production code has no switch for any of it. Lines are taken out in copies, and never in the tree itself.
"""
