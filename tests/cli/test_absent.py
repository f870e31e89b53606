"""A thread that was never written to is said to be absent: what prints nothing would hide a misspelt name."""

from __future__ import annotations

import pytest

from tests.cli.test_commands import CREW
from tests.cli.test_commands import shoal as command

READING = [
    *(["events", "absent"], ["audit", "absent"], ["steps", "absent"], ["branch", "absent"], ["labels", "absent"]),
    *(
        ["mutations", "absent"],
        ["consumers", "absent"],
        ["log", "absent"],
        ["log", "absent", "--journal"],
        ["export", "absent"],
    ),
    *(["inbox", "list", "absent"], ["worklist", "list", "absent", "files"], ["undo", "absent"], ["merge", "absent"]),
    *(["edit", "absent", "{}"], ["redo", "absent"], ["show", "absent"]),
]


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_it_is_named_and_nothing_is_printed(arguments: list[str], target: list[str]) -> None:
    result = command(*arguments, *target, *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "absent" in result.stderr


def test_a_name_that_only_begins_so_is_another_thread(target: list[str]) -> None:
    assert command("events", "plai", *target, *CREW).exit_code == 1
    assert command("events", "plain", *target, *CREW).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["save", "plain", "[1]"],
        ["save", "plain", "{"],
        ["edit", "plain", "{"],
        ["append", "plain", "{"],
        ["merge", "forked", "--resolve", "side"],
        ["merge", "forked", "--resolve", "side={"],
        ["merge", "forked"],
        ["worklist", "done", "plain", "files", "a"],
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_refused_and_nothing_is_written(arguments: list[str], target: list[str]) -> None:
    before = command("export", "--all", *target, *CREW).stdout
    result = command(*arguments, *target, *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("shoal: ")
    assert command("export", "--all", *target, *CREW).stdout == before
