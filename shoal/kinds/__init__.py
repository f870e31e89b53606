"""The kinds of state that users keep, a folder each: all of a feature is in one place. This is the one list of them.

    state       pure: rows, and changes: how each is applied, checked and what it erases (`shoal.crdt.applier`)
    changes     the latter, if the rows take a module of their own; as pure
    requests    the requests and replies, and with them routes, commands and session messages
    handler     how a node serves the requests; `serving` if that takes several modules
    flows       operations of several requests, for handles and HTTP alike
    handle      the handle that users hold

Each part lives by the rules of its layer (`tests/test_layers.py`), and each is a module, or a package of modules.

Laws:
- The number of a kind is on disk and never changes or stands for another kind.
- All else that concerns every kind is declared in its folder, and found there: nothing lists the kinds again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, cast


class Kind(IntEnum):
    """The kinds of objects, by their numbers on disk."""

    THREAD = 1
    DOCUMENT = 2
    COUNTER = 3
    REGISTER = 4
    ITEMS = 5
    SCHEMA = 6
    SET = 7
    BUDGET = 8
    MAP = 9
    LIST = 10

    @property
    def label(self) -> ObjectKind:
        """The kind as requests, error texts and its folder spell it: `thread`, `document`, …"""
        return LABELS[self]


ObjectKind = Literal["thread", "document", "counter", "register", "items", "schema", "set", "budget", "map", "list"]
"""The same names, for type checkers, which cannot derive them."""

LABELS: Mapping[Kind, ObjectKind] = {kind: cast("ObjectKind", kind.name.lower()) for kind in Kind}
KINDS: Mapping[str, Kind] = {label: kind for kind, label in LABELS.items()}

_PARTS = ("file", "journal", "label", "step", "worklist")  # Of a thread: their rows are among its rows.
_ROWLESS = ("lease", "presence", "redaction", "retention", "tiering")  # Kept by the quorum, in memory, or in a map.
CHANGES = ("state", "changes")  # The parts of which one declares how the changes of a kind are applied.


def modules(part: str) -> Iterator[tuple[str, ModuleType]]:
    """This part of each folder that has it, imported, and the folder's name."""
    for folder in (*KINDS, *_PARTS, *_ROWLESS):
        if (module := _module(folder, part)) is not None:
            yield folder, module


def declared(name: str, *parts: str) -> Iterator[tuple[Kind, Any]]:
    """The value of this name in the first of these parts that has one, of each folder, and the kind of the objects with the
    rows."""
    for folder in (*KINDS, *_PARTS, *_ROWLESS):
        for part in parts:
            if hasattr(module := _module(folder, part), name):
                yield KINDS.get(folder, Kind.THREAD), getattr(module, name)
                break


def _module(folder: str, part: str) -> ModuleType | None:
    name = f"{__name__}.{folder}.{part}"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
