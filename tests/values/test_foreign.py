from __future__ import annotations

import contextlib
import sys
from collections import namedtuple
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from shoal import values
from shoal.errors import InvalidValue, ShoalError
from shoal.integrations.langgraph import encoding
from shoal.values.codec import LANGGRAPH, LANGGRAPH_TYPED

SERDE = JsonPlusSerializer()
Point = namedtuple("Point", "x y")


def shown(value: Any) -> Any:
    return values.decode_channel(encoding.pack_value(SERDE, value), LANGGRAPH)


@pytest.mark.parametrize("value", [None, b"bytes", "text", 7, [1, [2.5]], {"a": {1: True}}], ids=repr)
def test_plain_values_are_shown_as_they_are(value: Any) -> None:
    assert shown(value) == value


def test_an_object_is_shown_by_the_name_of_its_class() -> None:
    found = shown([HumanMessage("hi", id="1")])[0]
    assert found["class"] == "langchain_core.messages.human.HumanMessage"
    assert (found["value"]["content"], found["value"]["id"]) == ("hi", "1")
    assert shown(Point(1, 2)) == {"class": f"{__name__}.Point", "value": {"x": 1, "y": 2}}
    assert shown(_DeltaSnapshot([1])) == {"class": "delta snapshot", "value": [1]}
    assert shown(Send("node", {"a": 1}))["value"] == ["node", {"a": 1}]
    assert shown(bytearray(b"x")) == b"x"
    values.to_json(shown({"messages": [HumanMessage("hi", id="1")], "at": Point(1, 2)}))


def test_other_schemas_are_shoals_own() -> None:
    packed = values.encode((1, {2}))
    for schema in ("", "plan"):
        assert values.decode_channel(packed, schema) == (1, {2})


def test_the_code_is_the_encodings() -> None:
    assert encoding.TYPED_CODE == LANGGRAPH_TYPED


@given(st.binary(max_size=60) | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=30)).map(msgpack.packb))
def test_any_bytes_are_shown_or_refused_and_nothing_is_imported(packed: bytes) -> None:
    before = set(sys.modules)
    with contextlib.suppress(ShoalError):
        values.encode(values.decode_channel(packed, LANGGRAPH))
    assert set(sys.modules) == before


def test_objects_that_nest_too_deep_are_refused() -> None:
    packed = msgpack.packb(1)
    for _ in range(40):
        packed = msgpack.packb(msgpack.ExtType(7, packed))
    with pytest.raises(InvalidValue, match="inside each other"):
        values.decode_channel(packed, LANGGRAPH)
