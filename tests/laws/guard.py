"""What guards a law, and which laws a module states.

    [shoal/crdt/dot.py]                the module that states the laws which follow

    law: So whoever names one last       the words with which a law begins
    test: tests/crdt/test_floor.py::…    the test that fails without the line, as pytest names it, without parameters
    in: shoal/…                          the file with the line, if it is another one
     def is_reached(…                    what is taken out, as a diff shows it: context, the line, and what stands there instead
    -    return seen[HORIZON] >= …
    +    return True

Of a law that no line holds `why:` says why. An empty line ends an entry.

Laws:
- A law is an entry of a list directly under `Laws:` in a module's first lines, or the paragraph after `Law:`. A line that
  is no part of an entry ends the list: lists after it describe.
- The text of a guard, context and line, stands once in its file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
_STATED = re.compile(r"^Laws?:", re.MULTILINE)
_ENTRY = re.compile(r"^- ", re.MULTILINE)
_FIELD = re.compile(r"(law|test|in|why): (.*)")


class Guard(NamedTuple):
    """One law, with a test that fails when a line that holds it is taken out, or with a reason why no line holds it."""

    module: str  # That states the law.
    law: str  # The words with which it begins.
    test: str = ""
    at: str = ""  # The file with the line.
    line: str = ""
    without: str = ""
    why: str = ""


def guards(areas: Collection[str] = ()) -> list[Guard]:
    """The guards of these areas; of all if none is named."""
    files = [HERE / f"{area}.laws" for area in areas] or sorted(HERE.glob("*.laws"))
    return [guard for file in files for guard in parsed(file.read_text())]


def parsed(text: str) -> Iterator[Guard]:
    """The guards in a text of the form above.

    Raises:
        ValueError: it has another form.
    """
    module = ""
    for block in re.split(r"\n\n+", text.strip("\n")):
        first, *rest = block.split("\n")
        if first.startswith("["):
            module, block = first.strip("[]"), "\n".join(rest)
        if block:
            yield _guard(module, block)


def _guard(module: str, block: str) -> Guard:
    said: dict[str, str] = {}
    line: list[str] = []
    without: list[str] = []
    for each in block.split("\n"):
        field = None if line or without else _FIELD.fullmatch(each)
        if field is not None:
            said[field[1]] = field[2]
        elif each[:1] in (" ", "-", "+"):
            line += [each[1:] + "\n"] * (each[0] != "+")
            without += [each[1:] + "\n"] * (each[0] != "-")
        else:
            raise ValueError(f"{each!r} is no part of a guard, after {said}")
    if "law" not in said or ("why" in said) == ("test" in said) or bool(line) != ("test" in said):
        raise ValueError(f"a guard has a law, and either a test and a line, or a reason: {said}")
    at = said.get("in", module)
    return Guard(module, said["law"], said.get("test", ""), at, "".join(line), "".join(without), said.get("why", ""))


def laws_of(source: str) -> list[str]:
    """The laws that the first lines of a module state, each on one line."""
    _, *sections = _STATED.split(ast.get_docstring(ast.parse(source)) or "")
    return [law for section in sections for law in _laws_in(section)]


def _laws_in(section: str) -> list[str]:
    """The laws after `Law:`, which is one, or after `Laws:`."""
    if not section.startswith("\n"):
        return [_joined(section)]
    entries = takewhile(lambda line: not line or line.startswith(("- ", "  ")), section.split("\n"))
    return [_joined(entry) for entry in _ENTRY.split("\n".join(entries))[1:]]


def _joined(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def without_its_line(guard: Guard, source: str) -> str:
    """The file with the line of a guard, without it.

    Raises:
        ValueError: the line is not there, or more than once, or what is left is no Python.
    """
    if (count := source.count(guard.line)) != 1:
        raise ValueError(f"{guard.at} has the line of {guard.law!r} {count} times, and not once:\n{guard.line}")
    left = source.replace(guard.line, guard.without)
    try:
        ast.parse(left)
    except SyntaxError as error:
        raise ValueError(f"{guard.at} is no Python without the line of {guard.law!r}: {error}") from None
    return left
