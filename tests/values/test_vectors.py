"""Vectors: finite floats, and one at least."""

from __future__ import annotations

from math import inf, nan

import pytest

from shoal.errors import InvalidValue
from shoal.values import forms as vectors


@pytest.mark.parametrize("floats", [[], [1.0, nan], [inf], [1e300]])
def test_malformed_vectors_are_refused(floats: list[float]) -> None:
    with pytest.raises(InvalidValue):
        vectors.pack(floats)


@pytest.mark.parametrize("packed", [b"", b"\x00\x00\x80", b"\x00\x00\x80\x7f"])
def test_bytes_that_are_no_vector_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        vectors.check(packed)


def test_a_packed_vector_is_little_endian() -> None:
    assert vectors.pack([1.0, -2.0]) == b"\x00\x00\x80\x3f\x00\x00\x00\xc0"
    assert list(vectors.unpack(vectors.pack([1.0, -2.0]))) == [1.0, -2.0]
