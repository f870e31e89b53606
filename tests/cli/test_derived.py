"""Commands that follow from declarations: which do, what they ask before they destroy, and their examples."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

import shoal
from shoal.cli.derived import BY_HAND, derived_commands
from shoal.cli.main import app
from shoal.protocol import requests
from shoal.protocol.base import Cli, declaration_of
from shoal.protocol.requests import Request
from tests.cli.test_commands import documents, lines
from tests.cli.test_commands import shoal as run

ROOT: Any = typer.main.get_command(app)
DERIVED = {cli.command: (kind, cli) for kind, cli in derived_commands()}
DESTROYING = {name: each for name, each in DERIVED.items() if each[1].destroys}

# Commands of requests that remove something from a list or a cursor, and lose nothing.
KEEPING: Mapping[str, str] = {
    "doc compact": "the content stays",
    "items unindex": "searches find the same, more slowly, and the index can be built again",
    "set pop": "it prints what it removes",
    "list remove": "it prints what it removes",
    "inbox take": "the message stays, as one that was taken",
    "worklist done": "the item stays, as one that is done",
    "worklist complete": "the item stays, as one that is done",
    "retain": "a rule: what it trims is trimmed as the journal grows, and `trim --dry-run` shows it",
}


def commands(of: Any = ROOT, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


COMMANDS = dict(commands())


def options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def test_a_command_is_derived_or_has_its_reason() -> None:
    by_hand = [name for names in BY_HAND.values() for name in names]
    assert len(by_hand) == len(set(by_hand))
    named = {name for name in COMMANDS if name in by_hand or name.partition(" ")[0] in by_hand}
    assert COMMANDS.keys() - DERIVED.keys() == named
    assert not DERIVED.keys() & named
    assert {name for name in by_hand if not any(f"{each} ".startswith(f"{name} ") for each in named)} == set()


def test_a_removal_asks_or_is_listed() -> None:
    removing = {name for name, (kind, _) in DERIVED.items() if declaration_of(kind).frees or declaration_of(kind).removes}
    adding = {name for name in removing if DERIVED[name][0] is requests.AlterSet and name == "set add"}
    assert removing - adding - DESTROYING.keys() == KEEPING.keys()


@pytest.mark.parametrize("name", DESTROYING)
def test_a_destroying_command_can_be_tried_and_agreed_to(name: str) -> None:
    assert {"--yes", "--dry-run"} <= options(name)


BY_HAND_DESTROYING = ("space delete", "space erase", "subject erase", "subject untag", "branch", "context remove")


@pytest.mark.parametrize("name", BY_HAND_DESTROYING)
def test_deletions_by_hand_can_be_tried_and_agreed_to(name: str) -> None:
    assert {"--yes", "--dry-run"} <= options(name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("derived") / "state"
    with shoal.sync.open(directory) as store:
        store.space("default").thread("t").save({"n": 1}, label="best")
        store.space("default").thread("t").journal.append("note")
    return ["--data", str(directory)]


def _given(name: str) -> list[str]:
    """Arguments of a command of which each is legal."""
    legal = {"before_ms": "2026-01-01T00:00:00Z", "thread": "t", "event": "0"}
    given = [each for each in COMMANDS[name].params if each.param_type_name == "argument"]
    return [legal.get(each.name, "1") for each in given] + ["--keep-last", "1"] * (name == "trim")


@pytest.mark.parametrize("name", DESTROYING)
def test_nothing_is_destroyed_unless_agreed_to(name: str, data: list[str]) -> None:
    before = run("export", "--all", *data).stdout
    refused = run(*name.split(), *_given(name), *data)
    assert (refused.exit_code, refused.stdout.strip()) == (1, "")
    assert "Nothing was written. --dry-run shows what would go; --yes agrees." in " ".join(refused.stderr.split())
    tried = run(*name.split(), *_given(name), "--dry-run", *data)
    assert tried.exit_code == 0, tried.output
    assert run("export", "--all", *data).stdout == before


def _understood(command: str) -> None:
    words = shlex.split(command.partition(" > ")[0].removeprefix("shoal "))
    context = ROOT.make_context("shoal", words)
    while hasattr(context.command, "commands"):
        name, inner, rest = context.command.resolve_command(context, context._protected_args + context.args)
        context = inner.make_context(name, rest, parent=context)


@pytest.mark.parametrize("name", COMMANDS)
def test_its_example_is_understood(name: str) -> None:
    paragraphs = (" ".join(each.split()) for each in (COMMANDS[name].help or "").split("\n\n"))
    examples = [each.removeprefix("Example: ") for each in paragraphs if each.startswith("Example: ")]
    assert examples, "it has no example"
    for example in examples:
        assert f"{example} ".startswith(f"shoal {name} ")
        _understood(example)


def test_an_input_without_a_word_for_it_is_an_error() -> None:
    kinds: list[tuple[type[Request[Any]], Cli]] = list(derived_commands())
    assert len(kinds) == len(DERIVED), "two declarations have one command"


def test_an_item_is_done_by_its_id_alone(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        store.space("default").thread("t").worklist("files").add(["a"])
    where = ["--data", str(tmp_path / "state")]
    (listed,) = documents("worklist", "list", "t", "files", *where)
    (done,) = documents("worklist", "done", "t", "files", "--id", listed["id"], "--result", "5", *where)
    assert done == {"first": True, "by": "", "result": 5}
    (shown,) = documents("worklist", "show", "t", "files", "--id", listed["id"], *where)
    assert (shown["key"], shown["finishes"][0]["result"]) == ("a", 5)
    both = run("worklist", "done", "t", "files", "a", "--id", listed["id"], *where)
    assert (both.exit_code, "either the item's KEY or its --id" in both.stderr) == (1, True)


def test_a_list_is_read_page_by_page(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        members = store.space("default").set("many")
        members.add(*range(750))
        members.add(*range(750, 1500))
    where = ["--data", str(tmp_path / "state")]
    assert sorted(map(json.loads, lines("set", "get", "many", *where))) == list(range(1500))
    assert len(lines("set", "get", "many", "--limit", "1200", *where)) == 1200
    assert lines("set", "clear", "many", "--dry-run", *where) == ["1500"]
    assert lines("set", "clear", "many", "--yes", *where) == ["1500"]
