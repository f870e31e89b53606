"""The pure state of documents: the rows, and how changes fold into them. It does no I/O and reads no clock."""

from __future__ import annotations

HIDDEN = {ord("G"): 1}
"""Where content begins in the keys of rows, by their first byte: an encrypted store hides it."""
