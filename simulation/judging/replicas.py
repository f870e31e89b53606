"""Replicas that hold the same operations hold equal state: invariant 4, over what was read from each node.

Law: what is compared is all that a client can read, order included: heads as
they rank, checkpoints with their parents, events in their order, sums, siblings,
and the canonical forms of documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

from simulation.judging.checkers import InvariantViolated
from simulation.judging.found import Found
from simulation.workload.random_agents import SPACE

_SHOWN = {
    "threads": "thread",
    "journals": "journal",
    "counters": "counter",
    "registers": "register",
    "histories": "history of register",
    "documents": "document",
    "heads": "heads of thread",
    "parents": "parents in thread",
    "forms": "content of document",
}
"""What each field of `Found` shows, for people."""


def check_replicas(founds: Mapping[str, Found]) -> None:
    """
    Raises:
        InvariantViolated: two nodes show something else of one object.
    """
    differing = [text for one, other in pairwise(founds) for text in _differences(one, founds[one], other, founds[other])]
    if differing:
        raise InvariantViolated("4", "replicas differ", differing)


def _differences(one: str, ours: Found, other: str, theirs: Found) -> Iterator[str]:
    for field in fields(Found):
        held, held_there = getattr(ours, field.name), getattr(theirs, field.name)
        for name in sorted(held.keys() | held_there.keys()):
            here, there = _entries(field.name, held.get(name)), _entries(field.name, held_there.get(name))
            if here != there:
                yield f"{_SHOWN[field.name]} {name} in space {SPACE}: {_first_difference(one, here, other, there)}"


def _entries(kind: str, value: Any) -> list[str]:
    """What is held, as lines whose order counts; but a map in a document has none."""
    if kind == "heads" and value is not None:
        return [f"branch {branch}: {', '.join(ids)}" for branch, ids in value.items()]
    if isinstance(value, dict):
        return [f"{key} {item}" for key, item in value.items()]
    if isinstance(value, list):
        return [str(item) for item in (sorted(value) if kind == "documents" else value)]
    return [] if value is None else [str(value)]


def _first_difference(one: str, here: list[str], other: str, there: list[str]) -> str:
    at = next((n for n, (mine, its) in enumerate(zip(here, there, strict=False)) if mine != its), min(len(here), len(there)))
    mine, its = ("".join(items[at : at + 1]) or "nothing" for items in (here, there))
    return f"{one} holds {len(here)}, {other} {len(there)}; entry {at + 1} is {mine[:100]} on {one}, {its[:100]} on {other}"
