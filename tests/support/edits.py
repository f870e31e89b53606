"""Concurrent editing histories of one document, and causal orders to replay them in.

A history is data (a list of steps), so that whatever draws it can also shrink
it. Each author edits a pycrdt document of their own and now and then takes over
all that another author knows.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pycrdt

from shoal.kinds.document.state.document import RootKind

AUTHORS = 3
ACTIONS = 16
ROOTS: dict[str, RootKind] = {"m": "map", "a": "array", "t": "text", "x": "xml"}

_PLAIN = (1, 2**60, -1.5, "s", None, True, b"b", [1, {"x": "é"}])
_TEXTS = ("a", "é😀", "xyz")


class Step(NamedTuple):
    author: int
    action: int
    number: int


class Issued(NamedTuple):
    update: bytes
    knows: frozenset[int]  # Indexes of the updates that its author had applied before.


def play(steps: list[Step]) -> list[Issued]:
    """The updates of a history, in the order in which they were made."""
    issued: list[Issued] = []
    docs = [pycrdt.Doc[Any](client_id=client) for client in (1, 2**40, 2**53 - 1)]
    known: list[set[int]] = [set() for _ in docs]
    for step in steps:
        if step.action == 0:
            _take_over(step.author, step.number % AUTHORS, docs, known, issued)
            continue
        before = frozenset(known[step.author])
        update = _edited(docs[step.author], step)
        if update is not None:
            known[step.author].add(len(issued))
            issued.append(Issued(update, before))
    return issued


def causal_order(issued: list[Issued], rng: random.Random) -> list[int]:
    """Indexes in a random order in which each comes after all that its author knew."""
    order: list[int] = []
    left = set(range(len(issued)))
    while left:
        ready = sorted(index for index in left if not issued[index].knows & left)
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


def _take_over(author: int, other: int, docs: list[pycrdt.Doc[Any]], known: list[set[int]], issued: list[Issued]) -> None:
    for index in sorted(known[other] - known[author]):
        docs[author].apply_update(issued[index].update)
    known[author] |= known[other]


def _edited(doc: pycrdt.Doc[Any], step: Step) -> bytes | None:
    updates: list[bytes] = []
    subscription = doc.observe(lambda event: updates.append(event.update))
    with doc.transaction():
        _edit(doc, step.action, step.number)
    doc.unobserve(subscription)
    return updates[0] if updates else None


def _edit(doc: pycrdt.Doc[Any], action: int, number: int) -> None:
    shared: pycrdt.Map[Any] = doc.get("m", type=pycrdt.Map)
    items: pycrdt.Array[Any] = doc.get("a", type=pycrdt.Array)
    text = doc.get("t", type=pycrdt.Text)
    key = "xyz"[number % 3]
    nested = shared.get(key)
    if action == 1:
        text.insert(0 if number % 2 else len(text), _TEXTS[number % 3])
    elif action == 2:
        text.clear()
    elif action == 3:
        shared[key] = _PLAIN[number % len(_PLAIN)]
    elif action == 4:
        shared[key] = pycrdt.Map({"q": pycrdt.Array([1, "two"])})
    elif action == 5 and isinstance(nested, pycrdt.Map):
        nested["deep"] = pycrdt.Map({"z": number})
    elif action == 6 and key in shared:
        del shared[key]
    elif action == 7:
        items.insert(number % (len(items) + 1), pycrdt.Text("uv") if number % 2 else number)
    elif action == 8 and len(items):
        del items[number % len(items)]
    else:
        _edit_xml(doc, action, number)


def _edit_xml(doc: pycrdt.Doc[Any], action: int, number: int) -> None:
    fragment = doc.get("x", type=pycrdt.XmlFragment)
    inside: Any = fragment
    # Into the first element of each level, as often as the number says.
    for _ in range(number % 3):
        inside = next((child for child in inside.children if isinstance(child, pycrdt.XmlElement)), inside)
    text = next((child for child in inside.children if isinstance(child, pycrdt.XmlText)), None)
    place = number % (len(inside.children) + 1)
    if action == 9:
        inside.children.insert(place, pycrdt.XmlElement("ph"[number % 2], {"id": f"{number}"}, [pycrdt.XmlText("é")]))
    elif action == 10:
        inside.children.insert(place, pycrdt.XmlText(_TEXTS[number % 3]))
    elif action == 11 and isinstance(inside, pycrdt.XmlElement):
        inside.attributes["xyz"[number % 3]] = _PLAIN[number % len(_PLAIN)]
    elif action == 12 and isinstance(inside, pycrdt.XmlElement) and "x" in inside.attributes:
        del inside.attributes["x"]
    elif action == 13 and len(inside.children):
        del inside.children[number % len(inside.children)]
    elif action == 14 and text is not None:
        text.insert(0 if number % 2 else len(text), _TEXTS[number % 3], {"strong": {}} if number % 5 == 0 else {})
    elif action == 15 and text is not None and len(text):
        if number % 4 == 0:
            text.insert_embed(0, {"image": number})
        elif number % 4 == 1:
            text.clear()
        else:
            # Offsets count UTF-8 bytes, so that any other part might cut a character.
            text.format(0, len(text), {"em": True} if number % 4 == 2 else {"em": None, "strong": None})
