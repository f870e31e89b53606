"""Real editing traces (github.com/josephg/editing-traces): who typed what, and, of two at once, who had seen what.

They are no part of the project: they lie in `../shared/data` beside it, or where `SHOAL_BENCH_DATA` says.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pycrdt

from benchmarks.trajectories import DEFAULT, VARIABLE

SEQUENTIAL = ("automerge-paper", "friendsforever_flat", "sveltecomponent")
CONCURRENT = "friendsforever"


class Patch(NamedTuple):
    """At a position, counted in characters: delete so many, then insert."""

    position: int
    deleted: int
    inserted: str


class Transaction(NamedTuple):
    agent: int
    parents: tuple[int, ...]  # Indexes of the transactions that it builds on, with all that those build on.
    patches: tuple[Patch, ...]


class Trace(NamedTuple):
    start: str
    end: str
    agents: int
    transactions: list[Transaction]


def directory() -> Path | None:
    """Where the traces are; None if they are not there."""
    found = Path(os.environ.get(VARIABLE, DEFAULT)) / "edits"
    return found if found.is_dir() else None


def read(source: Path, name: str) -> Trace:
    with gzip.open(source / f"{name}.json.gz", "rt") as text:
        return parse(json.load(text))


def parse(found: dict[str, Any]) -> Trace:
    """Of a sequential trace each transaction builds on the one before."""
    transactions = [
        Transaction(
            transaction.get("agent", 0),
            tuple(transaction["parents"] if "parents" in transaction else range(index - 1, index)[: index and 1]),
            tuple(Patch(*patch) for patch in transaction["patches"]),
        )
        for index, transaction in enumerate(found["txns"])
    ]
    return Trace(found.get("startContent", ""), found["endContent"], found.get("numAgents", 1), transactions)


def type_characters(text: pycrdt.Text, transaction: Transaction) -> None:
    """Type it into a text of a mirror, whose positions are characters, as those of traces."""
    for position, deleted, inserted in transaction.patches:
        if deleted:
            del text[position : position + deleted]
        if inserted:
            text.insert(position, inserted)


def type_in(text: pycrdt.Text, shown: bytearray, transaction: Transaction) -> None:
    """Type it into a text of the engine, which counts bytes; `shown` is its content as UTF-8, which is kept in step."""
    for position, deleted, inserted in transaction.patches:
        start = _offset(shown, 0, position)
        stop = _offset(shown, start, deleted)
        if start < stop:
            del text[start:stop]
        if inserted:
            text.insert(start, inserted)
        shown[start:stop] = inserted.encode()


def _offset(shown: bytearray, start: int, characters: int) -> int:
    """The byte that is so many characters behind another."""
    if shown.isascii():
        return start + characters
    return start + len(shown[start:].decode()[:characters].encode())
