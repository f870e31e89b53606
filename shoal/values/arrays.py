"""NumPy arrays and scalars as forms; NumPy itself is imported only once a value needs it.

Law: only types of fixed size without references are supported: booleans, integers,
floats, complex numbers, datetimes, and text of fixed width. Objects, records and
platform-dependent floats are refused. Arrays are written in C order; byte order
is kept. A subclass of `ndarray` (masked, matrix) is not an array.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from shoal.values.forms import Form

_ALLOWED = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[mM]8(\[\w+\])?|[SU][1-9]\d{0,8})")


def form_of(cls: type) -> Form | None:
    """The form for `cls` if it is NumPy's. If NumPy is not loaded in this process, no class is."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        return ARRAY
    return SCALAR if issubclass(cls, numpy.generic) else None


def _checked_dtype(text: Any) -> str:
    if type(text) is not str or _ALLOWED.fullmatch(text) is None:
        raise ValueError(
            f"NumPy type {text!r} is not supported: only booleans, numbers of up to 64 bits (complex 128), datetimes and "
            "fixed-width text are; convert it, for instance with .astype(float) or .tolist()"
        )
    return text


def _dump_array(value: Any) -> list[Any]:
    return [_checked_dtype(value.dtype.str), list(value.shape), value.tobytes()]


def _dump_scalar(value: Any) -> list[Any]:
    return [_checked_dtype(value.dtype.str), value.tobytes()]


def _load_array(plain: Any) -> Any:
    text, shape, data = plain
    return _read(text, tuple(shape), data).copy()  # The copy is writable, and does not pin the message it came in.


def _load_scalar(plain: Any) -> Any:
    text, data = plain
    return _read(text, (1,), data)[0]


def _read(text: Any, shape: tuple[int, ...], data: Any) -> Any:
    try:
        import numpy
    except ImportError:
        raise ValueError(
            "the value holds a NumPy array, and NumPy is not installed; install it in a clone of Shoal: pip install '.[numpy]'"
        ) from None
    array = numpy.ndarray(shape, numpy.dtype(_checked_dtype(text)), buffer=data)
    if array.nbytes != len(data):
        raise ValueError(f"an array of {array.nbytes} bytes came with {len(data)}")
    return array


ARRAY = Form(13, "ndarray", _dump_array, _load_array)
SCALAR = Form(14, "numpy", _dump_scalar, _load_scalar)
