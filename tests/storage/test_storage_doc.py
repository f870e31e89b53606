"""docs/STORAGE.md has every table, change and row that the code writes, and no others."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from shoal.crdt import deletion
from shoal.kinds.budget import state as budget
from shoal.kinds.counter import state as counter
from shoal.kinds.document.state import compaction, document, repeats
from shoal.kinds.items import state as items
from shoal.kinds.list import state as lists
from shoal.kinds.map import state as ormap
from shoal.kinds.register import state as register
from shoal.kinds.schema import state as schema
from shoal.kinds.set import state as orset
from shoal.kinds.worklist import state as queue
from shoal.node.mutation import Change
from shoal.storage import keys
from shoal.storage.keys import KINDS

TEXT = (Path(__file__).parents[2] / "docs" / "STORAGE.md").read_text()
ALONE = {
    "counter": (counter, deletion),
    "register": (register,),
    "document": (document, compaction, repeats),
    "items": (items,),
    "schema": (schema,),
    "set": (orset,),
    "list": (lists,),
    "budget": (budget,),
    "map": (ormap,),
}
"""The modules of each kind's rows, except a thread's."""
THREADS = ("thread", "file", "label", "journal", "worklist", "step")
"""The kinds whose rows are a thread's."""


def heading(kind: str) -> str:
    return f"Rows of {'' if kind == 'items' else 'a '}{kind}"


def modules(kind: str) -> Iterator[ModuleType]:
    """The data types' modules whose rows an object of a kind has."""
    if kind in ALONE:
        yield from ALONE[kind]
        return
    for part in THREADS:
        state = importlib.import_module(f"shoal.kinds.{part}.state")
        parts = [f"{state.__name__}.{found.name}" for found in pkgutil.iter_modules(getattr(state, "__path__", ()))]
        yield from map(importlib.import_module, parts or [state.__name__])


def prefixes(kind: str) -> set[str]:
    """How the rows of a kind begin, as the page writes it."""
    return {
        ("`I` " if module is queue else "") + shown(value)  # The page has both queues in one row.
        for module in modules(kind)
        for value in vars(module).values()
        if isinstance(value, bytes) and re.fullmatch(rb"[A-Z][a-z]?[\x00-\x0f]?", value)
    }


def shown(prefix: bytes) -> str:
    letters = prefix.rstrip(bytes(range(16))).decode()
    return f"`{letters}`" + (f" 0x{prefix[-1]:02x}" if len(letters) < len(prefix) else "")


def table(title: str) -> list[str]:
    """The first cells of the tables below a heading."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert section is not None, title
    return [cell for cell in re.findall(r"^\| (.+?) \|", section[1], re.MULTILINE) if cell.startswith("`")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_a_kind_is_there_and_no_other(kind: str) -> None:
    rows, there = table(heading(kind)), prefixes(kind)
    assert there
    assert [prefix for prefix in sorted(there) if not any(row.startswith(prefix) for row in rows)] == []
    assert [row for row in rows if not any(row.startswith(prefix) for prefix in there)] == []


def test_every_change_is_there_and_no_other() -> None:
    tags = {str(change.__struct_config__.tag) for change in get_args(Change)}
    assert len(tags) > 20
    assert {row.strip("`") for row in table("Operations")} == tags


def test_every_table_is_there_and_no_other() -> None:
    tables = {
        value.decode() for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes) and len(value) == 1
    }
    assert {row[1] for row in table("Keys")} == tables


def test_every_kind_is_named_with_its_number() -> None:
    sentence = re.search(r"Kinds: (.*?)\. Partitions", TEXT, re.DOTALL)
    assert sentence is not None
    named = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", sentence[1])}
    assert named == {kind.label: int(kind) for kind in KINDS.values()}
