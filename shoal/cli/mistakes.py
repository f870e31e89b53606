"""Hints beside usage errors, for the mistakes that newcomers make."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

# click's. Older versions of typer use that package, and later ones have it within.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")

_NEAR_MAX = 3
_OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "get"), "`shoal threads` lists threads, and `shoal doc list` documents."),
    **dict.fromkeys(("start", "run", "server", "up"), "`shoal serve --data ./state` runs a node."),
    **dict.fromkeys(("init", "create", "new", "make"), "`shoal serve --data DIR` makes a store, and so does `shoal.open`."),
    **dict.fromkeys(("history", "checkpoints", "ps"), "`shoal log THREAD` lists a thread's checkpoints."),
    **dict.fromkeys(("tree", "dag", "branches"), "`shoal graph THREAD` draws a thread's branches."),
    **dict.fromkeys(("cat", "load", "state"), "`shoal show THREAD` prints a thread's state."),
    "help": "`shoal --help` lists the commands, and `shoal COMMAND --help` explains one.",
    "version": "`shoal --version` prints it.",
}


@contextmanager
def hinted() -> Iterator[None]:
    """Add to a usage error in this context what may have been meant."""
    try:
        yield
    except _UsageError as error:
        if hint := _hint(error):
            error.message = f"{error.message} {hint}".lstrip()
        raise


def near(name: str, names: Iterable[str]) -> str:
    """A sentence, after a space, with those of `names` that are similar to this one; empty if none is."""
    there = list(names)
    found = [each for each in there if each.startswith(name)] or difflib.get_close_matches(name, there, n=_NEAR_MAX)
    return f" Did you mean {', '.join(map(repr, found[:_NEAR_MAX]))}?" if found else ""


def _hint(error: Any) -> str:
    command = "" if error.ctx is None else error.ctx.command_path
    if early := _meant_for_all(error):
        return early
    if type(error).__name__ == "NoSuchOption" and error.ctx is not None and hasattr(error.ctx.command, "commands"):
        group = f"{command} COMMAND"
        return f"Options come after the command: {group} {error.option_name} …"
    if unknown := re.match(r"No such command '([^']*)'", error.message):
        return _OTHER_WORDS.get(unknown[1].lower(), "")
    if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", error.message, re.DOTALL):
        return _about_extra(extra[1])
    if command == "shoal serve" and error.ctx is not None and "data" in str(getattr(error, "param", "")):
        return "For example: shoal serve --data ./state"
    return ""


def _meant_for_all(error: Any) -> str:
    """Where an option goes that is `shoal`'s own, and was given to a command; empty if the error is another one."""
    if error.ctx is None or error.ctx.parent is None:
        return ""
    root = error.ctx.find_root()
    own = {name for option in root.command.params for name in option.opts}
    words = [getattr(error, "option_name", ""), *re.findall(r"--[\w-]+", error.message)]
    meant = next((word for word in words if word in own and word != "--help"), "")
    command = error.ctx.command_path.removeprefix(f"{root.command_path} ")
    return f"It stands before the command: {root.command_path} {meant} … {command} …" if meant else ""


def _about_extra(words: str) -> str:
    if re.search(r"[{}\[\]\"]", words):
        return "Put JSON in single quotes, so that the shell leaves it as it is: '{\"step\": 1}'."
    if "://" in words:
        return f"A node is named by --url: --url {words.split()[0]}"
    if "/" in words or words.startswith("."):
        return f"A store's directory is named by --data: --data {words.split()[0]}"
    return "A name that has spaces is put in quotes."
