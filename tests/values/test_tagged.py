"""The JSON form loses nothing, and says clearly what it does not accept."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue
from tests.support.examples import examples
from tests.support.samples import anything, shape


@examples(150)
@given(anything)
def test_any_value_survives_the_way_through_json_text(value: Any) -> None:
    text = json.dumps(values.to_json(value), allow_nan=False)
    again = values.from_json(json.loads(text))
    assert again == value
    assert shape(again) == shape(value)


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        ({"a": [1, "x", None, 1.5]}, {"a": [1, "x", None, 1.5]}),
        (b"\xff", {"$type": "bytes", "value": "/w=="}),
        (2**53 - 1, 2**53 - 1),
        (2**53, {"$type": "int", "value": "9007199254740992"}),
        ((1, 2), {"$type": "tuple", "value": [1, 2]}),
        (-math.inf, {"$type": "float", "value": "-inf"}),
        ({1: "a"}, {"$type": "dict", "value": [[1, "a"]]}),
        ({"$type": "x"}, {"$type": "dict", "value": [["$type", "x"]]}),
        ({"b", "a"}, {"$type": "set", "value": ["a", "b"]}),
    ],
    ids=lambda case: type(case).__name__,
)
def test_json_forms_are_as_documented(value: Any, tree: Any) -> None:
    assert values.to_json(value) == tree
    assert values.from_json(tree) == value


def test_nan_survives_json() -> None:
    assert math.isnan(values.from_json(values.to_json(math.nan)))


def test_integers_too_long_for_decimal_text_survive_json() -> None:
    assert values.from_json(values.to_json(-(7**9000))) == -(7**9000)


def test_arrays_survive_json() -> None:
    again = values.from_json(json.loads(json.dumps(values.to_json(numpy.eye(2)))))
    assert (again == numpy.eye(2)).all()


def test_long_integers_are_accepted_untagged() -> None:
    assert values.from_json(2**63) == 2**63


@pytest.mark.parametrize(
    "tree",
    [
        {"$type": "unknown", "value": 1},
        {"$type": ["tuple"], "value": []},
        {"$type": "tuple"},
        {"$type": "tuple", "value": "abc"},
        {"$type": "tuple", "value": [], "more": 1},
        {"$type": "object", "value": {}},
        {"$type": "object", "class": "os.system", "value": {}},
        {"$type": "int", "value": 7},
        {"$type": "int", "value": "7 "},
        {"$type": "int", "value": "9" * 5000},
        {"$type": "float", "value": "1.5"},
        {"$type": "bytes", "value": "no base64!"},
        {"$type": "dict", "value": [[[], 1]]},
        {"$type": "datetime", "value": "yesterday"},
        {"$type": "datetime", "value": "2026-01-01[../../etc/passwd]"},
        {"$type": "decimal", "value": "one"},
        {"$type": "ndarray", "value": ["|O", [1], {"$type": "bytes", "value": ""}]},
    ],
    ids=str,
)
def test_json_that_is_no_value_is_refused(tree: Any) -> None:
    with pytest.raises(InvalidValue):
        values.from_json(tree)


json_trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.fixed_dictionaries(
            {"$type": st.sampled_from(["int", "set", "dict", "time", "uuid", "complex", "numpy"]), "value": inner}
        ),
    ),
    max_leaves=6,
)


@examples(200)
@given(json_trees)
def test_arbitrary_json_is_read_or_refused_and_nothing_else(tree: Any) -> None:
    try:
        value = values.from_json(tree)
    except InvalidValue:
        return
    assert value == values.from_json(values.to_json(value))


def test_values_nest_192_deep_in_json_and_no_deeper() -> None:
    deep: Any = 1
    for _ in range(191):
        deep = [deep]
    assert values.from_json(values.to_json(deep)) == deep
    too_deep = [deep]
    for convert in (values.to_json, values.from_json):
        with pytest.raises(InvalidValue, match="more than 192 deep"):
            convert(too_deep)


def test_unserialisable_values_have_no_json_form() -> None:
    with pytest.raises(InvalidValue, match="no JSON form"):
        values.to_json({"a": print})
