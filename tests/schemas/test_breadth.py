"""The work that a schema asks for is bounded before anything is checked by it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import InvalidSchema
from shoal.schemas.effort import VISITS_MAX, Survey


def _doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    parts: dict[str, Any] = {
        f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**parts, f"a{levels}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def _tree(alternatives: int) -> dict[str, Any]:
    child = {"properties": {"child": {"$ref": "#/$defs/node"}}, "required": ["never"]}
    return {"$defs": {"node": {"anyOf": [dict(child) for _ in range(alternatives)]}}, "$ref": "#/$defs/node"}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"a": {"items": {"type": "string"}}}},
        {"properties": {"child": {"$ref": "#"}}},
        {"$defs": {"n": {"properties": {"left": {"$ref": "#/$defs/n"}, "right": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}]},
        _doubling(8),
        _tree(1),
        {"$defs": {"a b": {}, "a/b": {}}, "allOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/a~1b"}]},
    ],
)
def test_texts_written_by_people_are_within_the_bound(schema: Any) -> None:
    Survey(schema).check()


@pytest.mark.parametrize("schema", [_doubling(30), _doubling(14, "anyOf"), _tree(2)])
def test_schemas_that_multiply_looks_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match=f"more than {VISITS_MAX} looks"):
        Survey(schema).check()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#"}, "refers to itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "refers to itself"),
        ({"$ref": "https://example.com/plan.json"}, "nothing outside the schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "nothing outside the schema"),
        ({"$ref": "other.json#/$defs/a"}, "nothing outside the schema"),
        ({"$ref": "#/$defs/a"}, "does not exist"),
        ({"title": "x", "$ref": "#/title"}, "not a schema"),
        ({"$defs": {"a": {"$id": "https://example.com/a"}}}, r"\$id"),
    ],
)
def test_references_to_nowhere_or_outside_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        Survey(schema).check()


def test_a_schema_that_nests_too_deep_or_has_too_many_parts_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"not": deep}
    with pytest.raises(InvalidSchema, match="deep"):
        Survey(deep).check()
    with pytest.raises(InvalidSchema, match="parts"):
        Survey({"properties": {f"p{n}": {} for n in range(5000)}}).check()
