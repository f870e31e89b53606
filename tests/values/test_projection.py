"""What a schema sees of packed bytes: a JSON tree, the same wherever it is made."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack  # type: ignore[import-untyped]
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue, ShoalError


@values.register(name="projected-task", version=2, upgrade={1: lambda form: form})
@dataclasses.dataclass
class Task:
    title: str
    tags: set[str]


@values.register(name="projected-mood")
class Mood(enum.Enum):
    GOOD = "good"


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        ({"a": [1, 2.5, None, True, "x"]}, {"a": [1, 2.5, None, True, "x"]}),
        ((1, {2}), [1, [2]]),
        (b"\x00\xff", "AP8="),
        (2**100, 2**100),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (timedelta(1, 2, 3), [1, 2, 3]),
        (Task("a", {"x"}), {"title": "a", "tags": ["x"]}),
        (Mood.GOOD, "good"),
        (numpy.float32(1.5), 1.5),
        (numpy.int64(-7), -7),
        (numpy.bool_(True), True),
        (numpy.zeros((2, 3)), {"dtype": "<f8", "shape": [2, 3]}),
        ({1: "a", (1, "b"): "c"}, {"1": "a", '[1, "b"]': "c"}),
    ],
)
def test_each_type_has_a_place_in_json(value: Any, tree: Any) -> None:
    assert values.project(values.encode(value)) == tree
    assert json.loads(json.dumps(values.project(values.encode(value)))) == tree


def test_a_class_need_not_be_registered() -> None:
    packed = msgpack.packb(msgpack.ExtType(1, msgpack.packb(["nobody.knows.This", {"title": "a"}])))
    assert values.project(packed) == {"title": "a"}


def test_two_keys_of_one_text_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two keys"):
        values.project(values.encode({1: "a", "1": "b"}))


def test_values_nested_too_deep_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidValue, match="deep"):
        values.project(values.encode(deep))


@given(st.binary(max_size=100))
def test_no_bytes_do_more_than_raise(packed: bytes) -> None:
    try:
        tree = values.project(packed)
    except ShoalError:
        return
    json.dumps(tree)
