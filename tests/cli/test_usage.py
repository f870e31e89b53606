"""`shoal usage` shows what holds the disk, of a directory and of a node."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import lines


def test_the_largest_spaces_are_shown(target: list[str]) -> None:
    rows = lines("usage", *target)
    assert rows[0].startswith("disk: ")
    assert [row.split()[0] for row in rows if row.startswith(("crew ", "other "))] == ["crew", "other"]
    found = json.loads(lines("usage", "--json", *target)[0])
    assert (found["spaces_in_all"], found["trouble"], found["log_holders"]) == (2, "", [])
    assert found["stored_bytes"] == sum(space["bytes"] for space in found["spaces"])


@pytest.mark.parametrize("limit", [1, 50])
def test_a_space_is_shown_by_kind_and_object(target: list[str], limit: int) -> None:
    rows = lines("usage", "crew", "--limit", str(limit), *target)
    assert rows[0].startswith("space crew: ")
    found = json.loads(lines("usage", "crew", "--json", "--limit", str(limit), *target)[0])
    assert len(found["largest"]) == min(limit, 5)
    assert {"thread", "counter", "register", "document"} == {use["kind"] for use in found["kinds"]}
