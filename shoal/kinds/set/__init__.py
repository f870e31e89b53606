"""Sets in which an add wins over a removal that has not seen it."""
