"""A panic of an engine, as one comes: a `BaseException` of a class that cannot be imported."""

from __future__ import annotations

import pycrdt


def a_panic() -> BaseException:
    """A new one."""
    doc: pycrdt.Doc[pycrdt.Map[int]] = pycrdt.Doc()
    try:
        doc.get("m", type=pycrdt.Map)["k"] = 2**70
    except BaseException as panic:
        return panic
    raise AssertionError("the engine takes it now")
