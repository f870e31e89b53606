"""A replicated rule refuses with the place of the field, shows no values, and reaches for nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidSchema
from shoal.schemas.rule import Rule

PLAN: dict[str, Any] = {
    "type": "object",
    "required": ["tasks"],
    "additionalProperties": False,
    "properties": {
        "tasks": {
            "type": "array",
            "items": {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}},
        },
        "budget": {"type": "number", "minimum": 0},
        "a/b~c": {"type": "string"},
    },
}


def rule(schema: Any) -> Rule:
    return Rule(json.dumps(schema).encode())


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"tasks": [{"title": "a"}, {"title": 1}]}, "/tasks/1/title"),
        ({"tasks": [{}]}, "/tasks/0"),
        ({}, ""),
        ({"tasks": [], "budget": -1}, "/budget"),
        ({"tasks": [], "more": 1}, ""),
        ({"tasks": [], "a/b~c": 1}, "/a~1b~0c"),
    ],
)
def test_a_flaw_names_the_path_of_the_field(state: dict[str, Any], path: str) -> None:
    flaw = rule(PLAN).flaw(state)
    assert flaw is not None
    assert flaw.path == path


def test_a_flaw_shows_no_value() -> None:
    flaw = rule({"properties": {"token": {"type": "integer"}}}).flaw({"token": "hunter2"})
    assert flaw is not None
    assert "hunter2" not in flaw.why
    assert "integer" in flaw.why


def test_a_pattern_that_makes_others_backtrack_is_decided_at_once() -> None:
    slow = rule({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    assert slow.flaw({"a": "a" * 100_000 + "b"}) is not None  # A backtracking matcher would not come back.
    assert slow.flaw({"a": "a" * 100_000}) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "object or a boolean"),
        (b'{"type": "plan"}', "/type"),
        (b'{"pattern": "("}', "/pattern"),
        (b'{"pattern": "(?<=x)y"}', "/pattern"),
        (b'{"$schema": "https://example.com/mine"}', "cannot be enforced|can be enforced"),
        (b'{"$ref": "http://127.0.0.1:1/x"}', "nothing outside"),
        (b'{"required": "a"}', "/required"),
    ],
)
def test_malformed_schemas_are_refused(text: bytes, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        Rule(text)


def test_an_impossible_check_is_no_pass() -> None:
    flaw = rule({"properties": {"a": {"enum": [1]}}}).flaw({"a": object()})
    assert flaw is not None
    assert "cannot be checked" in flaw.why


@given(
    st.dictionaries(
        st.sampled_from(["tasks", "budget", "more", "a/b~c"]),
        st.sampled_from([[], [{"title": "a"}], [{}], 1, -1, "text", None]),
    )
)
def test_channel_by_channel_a_state_passes_just_as_a_whole(state: dict[str, Any]) -> None:
    parted = rule(PLAN)
    assert parted.parted
    apart = parted.flaw_of_names(state) or parted.flaw_of_channels(state)
    assert (apart is None) == (parted.flaw(state) is None)


def test_a_schema_that_compares_channels_is_checked_as_a_whole() -> None:
    assert not rule({"if": {"required": ["a"]}, "then": {"required": ["b"]}}).parted
    assert not rule({"properties": {"a": {}}, "dependentRequired": {"a": ["b"]}}).parted


def test_a_schema_that_multiplies_is_no_rule() -> None:
    parts: dict[str, Any] = {"d0": {"type": "integer"}}
    parts |= {f"d{nth}": {"allOf": [{"$ref": f"#/$defs/d{nth - 1}"}] * 2} for nth in range(1, 20)}
    with pytest.raises(InvalidSchema, match="asks for more than"):
        Rule(json.dumps({"$defs": parts, "properties": {"a": {"$ref": "#/$defs/d19"}}}).encode())
