"""One name, one spelling and one help for one idea, in every command."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from typer.main import get_command

from shoal.cli.main import app


class Option(NamedTuple):
    command: str
    names: tuple[str, ...]
    metavar: str
    help: str
    variable: str | None


def options(command: Any = None, path: str = "shoal") -> Iterator[Option]:
    command = command or get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from options(inner, f"{path} {name}")
    for found in command.params:
        if found.param_type_name == "option" and not hasattr(command, "commands"):
            help = re.sub(r"\s*\\\[.*", "", found.help or "")
            yield Option(path, tuple(found.opts), found.metavar or "", help, found.envvar)


ALL = list(options())

# The same name for another thing, and why that is not confusing.
_OTHERS = {
    "--space": {"shoal import", "shoal restore"},  # Where a thread goes, or the part that is wanted; by default there is none.
    "--data": {"shoal serve", "shoal ui", "shoal restore"},  # Made or served there: no other program may have it open.
    "--url": {"shoal demo"},  # At which it works, rather than a store to look at; SHOAL_URL does not name them.
    "--tls-ca": {"shoal context add"},  # Of the server that is named.
    "--limit": {"shoal demo", "shoal usage"},  # Of modules, and of rows of each kind.
    "--replace": {"shoal import", "shoal redaction set"},  # What is there, and what stands in the place of what was found.
    "--keep": {"shoal demo", "shoal backup init"},  # What a demonstration leaves, and for how long moments stay.
    "--json": {"shoal export"},  # Which has no other output.
    "--at": {"shoal branch"},  # A place in a thread's history, as others take a moment in a backup's.
    "--allow": {"shoal token create"},  # A right; an import allows a type to be read, and its argument shows which.
    "--thread": {
        "shoal restore",
        "shoal lease end",
        "shoal lease show",
        "shoal lease run",
    },  # The name is given: it says that a thread has it.
    "--after": {"shoal events", "shoal mutations"},  # Each place has its own kind of position.
    # For the nodes to load a file or to hold the same, and not for keys to be destroyed.
    "--within": {"shoal cluster rotate-key", "shoal cluster wait"},
    "--vector": {"shoal items search"},  # What is searched for, rather than what is put.
}

# Names that were in use for an idea that has another name here: a new command must not bring them back.
_OTHER_NAMES = {
    "--author": "--by",
    "--keep": "--keep-last",
    "--bytes": "--keep-bytes",
    "--events": "--keep-last",
    "--watch": "--follow",
    "--value": "--result",
    "--max": "--limit",
    "--directory": "--data",
    "--dir": "--data",
    "--host": "--url",
    "--force": "--yes",
    "--thread": "an argument",
    "--format": "--output",
}
_ALLOWED = {
    ("shoal log", "--author"),  # Whose checkpoints are shown, and not who asks.
    ("shoal space quota", "--bytes"),  # A limit, and not how much is kept.
    ("shoal backup init", "--keep"),  # A time, and not how many of them.
    ("shoal demo", "--keep"),  # The nodes, once it is over.
    ("shoal demo", "--watch"),  # A person does, in a browser.
    ("shoal lease run", "--thread"),  # No name: the lease is that of the thread.
    ("shoal lease show", "--thread"),
    ("shoal lease end", "--thread"),
    ("shoal restore", "--thread"),  # A part of what its argument names.
    ("shoal file put", "--thread"),  # Left out, it is about the files of the space: an argument before NAME could not be.
    ("shoal file get", "--thread"),
    ("shoal file list", "--thread"),
    ("shoal file delete", "--thread"),
}


def by_name() -> dict[str, list[Option]]:
    found: dict[str, list[Option]] = defaultdict(list)
    for option in ALL:
        for name in option.names:
            found[name].append(option)
    return found


def test_a_name_means_the_same_in_every_command() -> None:
    for name, found in by_name().items():
        same = [option for option in found if option.command not in _OTHERS.get(name, ())]
        assert len({option._replace(command="") for option in same}) <= 1, same


def test_no_idea_has_a_second_name() -> None:
    second = {(option.command, name) for option in ALL for name in option.names if name in _OTHER_NAMES}
    assert second == _ALLOWED


def test_a_help_stands_for_one_name() -> None:
    names: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for option in ALL:
        names[option.help].add(option.names)
    assert {help: found for help, found in names.items() if len(found) > 1} == {}


def test_an_option_is_spelt_as_all_are_and_explained() -> None:
    for option in ALL:
        assert re.fullmatch(r"--[a-z]+(-[a-z]+)*", option.names[0]), option
        assert option.help.endswith((".", "c", "m", "s")), option
        assert not option.help.startswith(("Who ", "What ")) or option.names[0] in ("--by", "--result"), option


def test_every_command_that_changes_a_thread_as_somebody_takes_by() -> None:
    taking = {option.command for option in ALL if "--by" in option.names}
    assert {"shoal save", "shoal edit", "shoal merge", "shoal undo", "shoal redo", "shoal rollback"} <= taking
    assert {"shoal pause", "shoal approve", "shoal step resolve", "shoal inbox send", "shoal doc edit"} <= taking
    assert {option.variable for option in ALL if "--by" in option.names} == {"SHOAL_AUTHOR"}
