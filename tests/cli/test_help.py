"""What `--help` and `--version` say."""

from __future__ import annotations

import re
from functools import cache

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app

COMMANDS = [
    *(["serve"], ["demo"], ["verify"]),
    *(["status"], ["spaces"], ["threads"], ["log"], ["show"], ["watch"], ["presence"], ["events"], ["export"]),
    *(["inbox", "list"], ["inbox", "send"], ["labels"], ["append"], ["consumers"]),
    *(["save"], ["edit"], ["merge"], ["undo"], ["redo"], ["mutations"]),
    *(["worklist", "list"], ["worklist", "add"], ["worklist", "done"]),
    *(["items", "get"], ["items", "put"], ["items", "search"], ["items", "delete"], ["items", "namespaces"]),
    *(
        ["doc", "get"],
        ["doc", "list"],
        ["doc", "edit"],
        ["doc", "watch"],
        ["doc", "conflicts"],
        ["doc", "compact"],
        ["doc", "delete"],
        ["counter", "get"],
        ["counter", "list"],
        ["register", "get"],
        ["register", "list"],
    ),
    *(
        ["counter", "add"],
        ["register", "set"],
        ["set", "get"],
        ["set", "list"],
        ["set", "add"],
        ["set", "remove"],
        ["set", "clear"],
    ),
    *(["map", "get"], ["map", "list"], ["map", "set"], ["map", "remove"]),
    *(
        ["budget", "get"],
        ["budget", "list"],
        ["budget", "grant"],
        ["budget", "spend"],
        ["budget", "draw"],
        ["budget", "release"],
    ),
]


@cache
def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"TERMINAL_WIDTH": "140", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)


def test_help_groups_the_commands() -> None:
    text = said("--help")
    run, look = text.index("─ Run "), text.index("─ Look into a store ")
    assert run < text.index("│ serve ") < look < text.index("│ threads ")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    text = said(*command, "--help")
    assert f"Usage: {' '.join(['shoal', *command])}" in text


@pytest.mark.parametrize("command", [command for command in COMMANDS if len(command) == 1], ids=" ".join)
def test_every_command_shows_an_example(command: list[str]) -> None:
    assert f"Example: shoal {command[0]}" in " ".join(said(*command, "--help").split())


@pytest.mark.parametrize("command", [["threads"], ["show"], ["doc", "get"], ["watch"]], ids=" ".join)
def test_reading_commands_say_how_a_store_is_named(command: list[str]) -> None:
    text = said(*command, "--help")
    assert "Which store" in text
    assert all(name in text for name in ("--data", "SHOAL_DATA", "--url", "SHOAL_URL", "--space", "SHOAL_SPACE", "--json"))


def test_no_markup_is_left_in_any_help() -> None:
    assert not re.search(r"\[/?bold\]|\\\[", "".join(said(*command, "--help") for command in [[], *COMMANDS]))


def test_version_is_the_packages() -> None:
    assert said("--version") == f"shoal {shoal.__version__}\n"


def test_an_unknown_command_is_exit_code_2() -> None:
    assert CliRunner().invoke(app, ["swim"]).exit_code == 2
