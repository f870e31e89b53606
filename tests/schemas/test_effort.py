"""Checking a state is charged before it is done: by the looks at each value, and by the bytes that patterns may meet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.errors import InvalidSchema
from shoal.schemas.effort import PATTERNS_BYTES_MAX, STEPS_MAX
from shoal.schemas.rule import Rule

BLOWN = "[ab]*a[ab]{9000}[^ab]"  # Its automaton has 2 ** 9000 states: a byte of text took 0.1 ms, and 15 MiB half an hour.
SLUG = "^[a-z][a-z0-9_-]{0,62}$"
TEXT = "ab" * 500_000


def rule(schema: Any) -> Rule:
    return Rule(json.dumps(schema).encode())


def of_channel(schema: Any) -> Any:
    return {"properties": {"c": schema}}


def alternatives(count: int) -> Any:
    return {"items": {"allOf": [{"type": ["number", "string"]} for _ in range(count)]}}


def messages_of(kinds: int) -> Any:
    """Messages as models of agents' frameworks describe them: of several kinds, with a text or blocks of several kinds."""
    blocks = [{"properties": {"type": {"const": f"block-{nth}"}}, "required": ["type"]} for nth in range(4)]
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": blocks}}]}
    kind = [
        {"properties": {"type": {"const": f"kind-{nth}"}, "content": content}, "required": ["type"]} for nth in range(kinds)
    ]
    return {"items": {"anyOf": kind}}


MESSAGE = {"type": "kind-8", "content": [{"type": "block-3", "text": "What did the tool say?"}]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (alternatives(4000), [1] * 100_000),  # 16 s.
        ({"items": {"enum": list(range(4000))}}, [5000.5] * 100_000),  # 224 s, most of it for words of what was expected.
        ({"items": {"not": {"enum": [[nth] for nth in range(1000)]}}}, [[5000]] * 100_000),
        ({"items": {"dependentRequired": {f"k{nth}": ["a"] for nth in range(2000)}}}, [{"a": 1}] * 20_000),  # 5 s.
        ({"items": {"multipleOf": 0.3}}, [1.5e308] * 400_000),
        ({"pattern": BLOWN}, TEXT),
        ({"items": {"pattern": BLOWN}}, ["ab" * 100] * 5000),
        ({"properties": {"a": {"properties": {"b": {"pattern": BLOWN}}}}}, {"a": {"b": TEXT}}),
        ({"additionalProperties": {"pattern": BLOWN}}, {"a": TEXT}),
        ({"patternProperties": {"^x": {"pattern": BLOWN}}}, {"xa": TEXT}),
        ({"patternProperties": {BLOWN: True}}, {TEXT: 1}),
        ({"propertyNames": {"pattern": BLOWN}}, {TEXT: 1}),
        ({"not": {"anyOf": [{"type": "number"}, {"pattern": BLOWN}]}}, TEXT),
        ({"$ref": "#/$defs/n"}, {"n": {"n": {"t": TEXT}}}),
    ],
)
def test_work_beyond_the_bound_is_never_begun(schema: Any, value: Any) -> None:
    node = {"properties": {"n": {"$ref": "#/$defs/n"}, "t": {"pattern": BLOWN}}}
    flaw = rule({**of_channel(schema), "$defs": {"n": node}}).flaw({"c": value})
    assert flaw is not None
    assert f"cannot be checked (checking it may take more than {STEPS_MAX} steps" in flaw.why


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "number"}}, [1] * 500_000),
        ({"items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, [1] * 300_000),
        ({"items": {"enum": [f"state-{nth}" for nth in range(200)]}}, ["state-7"] * 200_000),
        (alternatives(40), [1] * 50_000),
        ({"pattern": r"\S"}, TEXT * 5),
        ({"items": {"pattern": "^[0-9a-f]{64}$"}}, ["0" * 64] * 20_000),
        ({"items": {"pattern": "^.{1,255}$"}}, ["A title that people write, about this long"] * 20_000),
        ({"items": {"pattern": "^[A-Za-z0-9_-]{1,64}$"}}, ["call_0123456789abcdef"] * 50_000),
        ({"items": {"pattern": r"^[\w.-]+$"}}, ["shoal.node"] * 50_000),
        ({"items": {"pattern": r"^[^@\s]+@[^@\s]+\.[^@\s]+$"}}, ["ada@example.org"] * 50_000),
        (
            {"items": {"properties": {"id": {"pattern": SLUG}, "text": {"type": "string"}}}},
            [{"id": f"message-{nth}", "text": "a" * 10_000} for nth in range(500)],
        ),
        # The pattern meets the ids alone.
        ({"items": {"properties": {"id": {"pattern": BLOWN}}}}, [{"id": "abc", "text": "a" * 10_000}] * 500),
        ({"pattern": BLOWN}, "ab" * 400 + "c"),
        (messages_of(9), [MESSAGE] * 24_000),  # A long conversation: at each turn it is checked whole.
    ],
)
def test_large_states_of_what_people_write_are_checked(schema: Any, value: Any) -> None:
    found = rule(of_channel(schema))
    flaw = found.flaw({"c": value})
    assert flaw is None or "does not match" in flaw.why


def test_a_flaw_in_much_is_refused_without_its_place() -> None:
    either = {"anyOf": [{"items": {"enum": [f"e{nth}" for nth in range(1000)]}}] * 2}
    small, large = rule(of_channel(either)).flaw({"c": ["x"]}), rule(of_channel(either)).flaw({"c": ["x"] * 50_000})
    assert small is not None
    assert large is not None
    assert (small.path, large.path) == ("/c", "")
    assert "too large to say where" in large.why


def test_patterns_are_bounded_together() -> None:
    few, many = ([{"pattern": f"[ab]*a[ab]{{{500 + nth}}}c"} for nth in range(count)] for count in (3, 500))
    rule({"allOf": few})
    with pytest.raises(InvalidSchema, match=f"more than {PATTERNS_BYTES_MAX} bytes"):
        rule({"allOf": many})
