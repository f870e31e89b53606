"""The kinds of state that users keep, a folder each: all of a feature is in one place. This is the one list of them.

    state       pure: rows, changes, and how they fold. It may import `shoal.crdt`.
    requests    the requests and replies, and with them routes, commands and session messages
    changes     how each change is applied, checked and what it erases (`shoal.node.appliers.applier`)
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


def modules(part: str) -> Iterator[tuple[str, ModuleType]]:
    """This part of each folder that has it, imported, and the folder's name."""
    for folder in (*KINDS, *_PARTS, *_ROWLESS):
        name = f"{__name__}.{folder}.{part}"
        try:
            yield folder, import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise


def declared(part: str, name: str) -> Iterator[tuple[Kind, Any]]:
    """The values of this name in that part of the folders that declare one, and the kinds of the objects that have the rows."""
    for folder, module in modules(part):
        if hasattr(module, name):
            yield KINDS.get(folder, Kind.THREAD), getattr(module, name)
