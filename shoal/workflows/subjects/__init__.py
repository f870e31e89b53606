"""Data subjects: which objects carry data about a person, and the erasure of all of them."""
