"""Values as bytes: their order is that of Python, wherever Python has one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal import values
from shoal.values.forms import OTHER, TEXT_BYTES_MAX, length, of_plain, ordered

NUMBERS = st.one_of(st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=2 * TEXT_BYTES_MAX)


def bytes_of(value: Any) -> bytes:
    found = ordered(values.encode(value))
    assert found is not None
    return found


@given(NUMBERS, NUMBERS)
@example(2**53, 2**53 + 1)
@example(0.0, -0.0)
@example(True, 1)
@example(2**64 - 1, float("inf"))
def test_of_numbers_the_lesser_never_has_the_greater_bytes(one: float, other: float) -> None:
    if one == other:
        assert bytes_of(one) == bytes_of(other)
    elif one < other:
        assert bytes_of(one) <= bytes_of(other)


@given(TEXTS, TEXTS)
@example("a", "a\x00")
@example("a\x00", "a\x01")
@example("", "\x00")
@example("x" * TEXT_BYTES_MAX, "x" * TEXT_BYTES_MAX + "y")
def test_of_texts_the_lesser_never_has_the_greater_bytes(one: str, other: str) -> None:
    if one == other:
        assert bytes_of(one) == bytes_of(other)
    elif one < other:
        assert bytes_of(one) <= bytes_of(other)


@given(st.one_of(NUMBERS, TEXTS), st.binary(max_size=20))
@example("\x00", b"\x00k")
@example("a", b"\x00\x00")
def test_where_a_value_ends_is_seen_in_what_follows_it(value: Any, more: bytes) -> None:
    assert length(bytes_of(value) + more) == len(bytes_of(value))


@given(st.one_of(NUMBERS, TEXTS))
def test_a_plain_value_has_the_bytes_of_the_packed_one(value: Any) -> None:
    assert of_plain(value) == bytes_of(value)


def test_numbers_come_before_texts_and_these_before_all_else() -> None:
    assert bytes_of(float("inf")) < bytes_of("") < bytes_of("\U0010ffff" * 50) < OTHER


def test_a_text_that_is_cut_within_a_character_can_be_looked_up() -> None:
    assert bytes_of("é" * TEXT_BYTES_MAX) == bytes_of("é" * TEXT_BYTES_MAX + "x")


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"x", (1,), float("nan"), Decimal(1), 2**70], ids=repr)
def test_values_without_an_order_are_other(value: Any) -> None:
    assert bytes_of(value) == OTHER


def test_none_has_no_bytes() -> None:
    assert ordered(values.encode(None)) is None
