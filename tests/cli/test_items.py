"""`shoal items`: what one command puts, the others find."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import documents, lines, shoal

MINE = ["--space", "items"]


@pytest.fixture(autouse=True)
def empty(target: list[str]) -> None:
    for item in documents("items", "search", *target, *MINE):
        assert lines("items", "delete", ".".join(item["namespace"]), item["key"], "--yes", *target, *MINE) == ["true"]


def test_an_item_is_put_and_printed(target: list[str]) -> None:
    (version,) = lines("items", "put", "memory.u-1", "likes", '{"tea": [1]}', *target, *MINE)
    assert json.loads(shoal("items", "get", "memory.u-1", "likes", *target, *MINE).stdout) == {"tea": [1]}
    (found,) = documents("items", "get", "memory.u-1", "likes", *target, *MINE)
    assert (found["namespace"], found["version"], found["expires_ms"]) == (["memory", "u-1"], version, None)


def test_items_are_found_by_filter_and_namespace(target: list[str]) -> None:
    for n in range(3):
        lines("items", "put", f"memory.u-{n}", "k", json.dumps({"n": n}), "--ttl", "3600", *target, *MINE)
    assert lines("items", "search", "memory", "--filter", '{"n": {"$gte": 1}}', *target, *MINE) == [
        'memory.u-1  k  {"n": 1}',
        'memory.u-2  k  {"n": 2}',
    ]
    assert len(lines("items", "search", "-n", "2", *target, *MINE)) == 2
    assert lines("items", "namespaces", "memory.*", "--depth", "1", *target, *MINE) == ["memory"]
    assert lines("items", "namespaces", *target, *MINE) == ["memory.u-0", "memory.u-1", "memory.u-2"]


def test_fields_are_indexed_and_a_search_is_explained(target: list[str]) -> None:
    lines("items", "put", "memory", "k", '{"n": 1}', *target, *MINE)
    assert lines("items", "index", "memory", "n", *target, *MINE) == ["n"]
    assert lines("items", "index", "memory", "n", *target, *MINE) == []
    assert lines("items", "indexes", "memory", *target, *MINE)[0] in ("n  built", "n")
    (said,) = lines("items", "search", "memory", "--filter", '{"kind": 1}', "--explain", *target, *MINE)
    assert said == "scan: 0 index rows, 1 items"
    assert lines("items", "unindex", "memory", "n", *target, *MINE) == ["n"]
    assert lines("items", "unindex", "memory", "n", *target, *MINE) == []


def test_deleting_what_is_not_there_says_so(target: list[str]) -> None:
    assert lines("items", "delete", "memory", "absent", "--yes", *target, *MINE) == ["false"]
    lines("items", "put", "memory", "there", "1", *target, *MINE)
    assert [lines("items", "delete", "memory", key, "--dry-run", *target, *MINE) for key in ("there", "absent")] == [
        ["true"],
        ["false"],
    ]
    assert lines("items", "delete-all", "memory", "--dry-run", *target, *MINE) == ["1"]
    assert lines("items", "get", "memory", "there", *target, *MINE) == ["1"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["get", "memory", "absent"], 1, "there is none in space 'items' under memory absent"),
        (["put", "memory", "k", "{"], 1, "is not valid JSON"),
        (["put", "memory", "k", "1", "--expect", "0" * 32], 1, "does not exist"),
        (["search", "memory", "--filter", '{"a": {"$in": 1}}'], 1, "'$in' is not a filter operator"),
        (["search", "memory", "--filter", "[1]"], 1, "--filter must be KEY=VALUE or a JSON object"),
        (["put", "memory..x", "k", "1"], 1, "must not be empty"),
    ],
)
def test_impossible_options_of_items_are_reported(target: list[str], arguments: list[str], code: int, said: str) -> None:
    result = shoal("items", *arguments, *target, *MINE)
    assert result.exit_code == code
    assert said in " ".join(result.stderr.replace("│", " ").split())
