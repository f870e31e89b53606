"""A thread that was never written to is said to be absent: what prints nothing would hide a misspelt name."""

from __future__ import annotations

import pytest

from tests.cli.test_commands import CREW
from tests.cli.test_commands import shoal as command

READING = [
    *(["events", "absent"], ["audit", "thread", "absent"], ["steps", "absent"], ["branch", "absent"], ["labels", "absent"]),
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


@pytest.mark.parametrize("arguments", [["threads"], ["counter", "list"], ["doc", "list"], ["schema", "list"]], ids=" ".join)
def test_a_list_that_is_empty_names_the_spaces_there_are(arguments: list[str], target: list[str]) -> None:
    result = command(*arguments, *target, "--space", "crwe")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith("in space 'crwe'. There is no such space; there is crew, other. Name it with --space.\n")
    assert command(*arguments, "--json", *target, "--space", "crwe").stderr == ""


def test_an_audit_of_no_space_says_so(target: list[str]) -> None:
    result = command("audit", "space", *target, "--space", "crwe")
    assert (result.exit_code, result.stdout) == (0, "")
    elsewhere = "There is no such space; there is crew, other. Name it with --space."
    assert result.stderr == f"shoal: there are no entries here. {elsewhere}\n"
    assert command("audit", "space", "--json", *target, "--space", "crwe").stderr == ""
    assert command("audit", "space", "--text", "no such text", *target, *CREW).stderr == "shoal: there are no entries here.\n"


@pytest.mark.parametrize("arguments", [["log", "plain"], ["steps", "plain"], ["counter", "get", "tokens"]], ids=" ".join)
def test_an_object_in_another_space_is_pointed_out(arguments: list[str], target: list[str]) -> None:
    result = command(*arguments, *target)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("There is no such space; there is crew, other. Name it with --space.\n")


def test_in_a_space_that_there_is_others_are_not_named(target: list[str]) -> None:
    assert command("map", "list", *target, *CREW).stderr == "shoal: no maps in space 'crew'.\n"


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
def test_wrong_values_write_nothing(arguments: list[str], target: list[str]) -> None:
    before = command("export", "--all", *target, *CREW).stdout
    result = command(*arguments, *target, *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("shoal: ")
    assert command("export", "--all", *target, *CREW).stdout == before
