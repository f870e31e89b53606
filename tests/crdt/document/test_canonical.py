"""The canonical form of a document is equal on all replicas with the same updates, whatever is in it, however they got it.

A scrub rebuilds a document whose form differs from that of its rows, so a form that differs without need cries wolf.
"""

from __future__ import annotations

import random
from math import inf, nan
from typing import Any, NamedTuple

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.state import untold
from shoal.kinds.document.state.live import Building, LiveDocument
from tests.support.edits import ROOTS, Issued, causal_order
from tests.support.examples import examples

AUTHORS = 3
MOVING = [
    2.2790121708605243e274,
    -8.697762175904393e217,
    2.9999999999999996,
    0.1 + 0.7,
    1 / 3,
    1e-310,
    -0.0,
    1.7e308,
    1.8236365261062358e17,
    2.0**63,
]
"""Numbers that the engine reads from JSON not quite exactly, or might."""

number = st.sampled_from(MOVING) | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
plain = st.recursive(
    number | st.sampled_from([None, True, "a", "é😀", nan, inf, b"", b"\x01\x02", 2**62]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=4,
)
as_json = st.sampled_from(MOVING) | st.recursive(
    number | st.sampled_from([None, True, "a", "é😀"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=4,
)


class Made(NamedTuple):
    author: int
    what: str
    at: int
    plain: Any
    json: Any


WHAT = (
    *("hear", "set", "unset", "nest", "insert", "extend", "remove", "write", "format", "embed", "cut"),
    *("element", "attribute", "xml text", "xml format", "xml embed", "xml remove", "embed a type"),
)
made = st.builds(Made, st.integers(0, AUTHORS - 1), st.sampled_from(WHAT), st.integers(0, 30), plain, as_json)


class Crowd:
    """Some clients, of which the last keeps what is deleted."""

    def __init__(self) -> None:
        self.docs = [pycrdt.Doc[Any](client_id=(9, 2**40, 3)[nth], skip_gc=nth == AUTHORS - 1) for nth in range(AUTHORS)]
        self.known: list[set[int]] = [set() for _ in self.docs]
        self.issued: list[Issued] = []
        for what in ("write", "xml text"):
            self.make(Made(0, what, 0, None, None))
        for author in range(1, AUTHORS):
            self.make(Made(author, "hear", 0, None, None))

    def make(self, step: Made) -> None:
        doc, known = self.docs[step.author], self.known[step.author]
        if step.what == "hear":
            other = self.known[step.at % AUTHORS]
            for index in sorted(other - known):
                doc.apply_update(self.issued[index].update)
            known |= other
            return
        before, updates = frozenset(known), list[bytes]()
        subscription = doc.observe(lambda event: updates.append(event.update))
        with doc.transaction():
            edit(doc, step)
        doc.unobserve(subscription)
        if updates:
            known.add(len(self.issued))
            self.issued.append(Issued(updates[0], before))


def edit(doc: pycrdt.Doc[Any], step: Made) -> None:
    keyed: Any = doc.get("m", type=pycrdt.Map)
    items: Any = doc.get("a", type=pycrdt.Array)
    text: Any = doc.get("t", type=pycrdt.Text)
    nodes: Any = doc.get("x", type=pycrdt.XmlFragment)
    key, at = "ab"[step.at % 2], step.at % (len(items) + 1)
    texts = [each for each in nodes.children if isinstance(each, pycrdt.XmlText)]
    elements = [each for each in nodes.children if isinstance(each, pycrdt.XmlElement)]
    match step.what:
        case "set":
            keyed[key] = step.plain
        case "unset" if key in keyed:
            del keyed[key]
        case "nest":
            keyed[key] = pycrdt.Map({"in": pycrdt.Array([step.plain])})
        case "insert":
            items.insert(at, step.plain)
        case "extend":
            items.extend([step.plain, b"\x01", [step.json], step.plain])
        case "remove" if len(items):
            del items[step.at % len(items)]
        case "write":
            text.insert(len(text), "ab😀")
        case "format" if len(text):
            text.format(0, 2, {"f": step.json})
        case "embed":
            text.insert_embed(0, step.json)
        case "embed a type":
            text.insert_embed(0, pycrdt.Map({"k": step.plain}))
        case "cut" if len(text) > 2:
            del text[0:1]
        case "element":
            nodes.children.append(pycrdt.XmlElement("pq"[step.at % 2], {"i": "1"}, [pycrdt.XmlText("é")]))
        case "attribute" if elements:
            elements[0].attributes["k"] = step.plain
        case "xml text":
            nodes.children.append(pycrdt.XmlText("abc"))
        case "xml format" if texts and len(texts[0]):
            texts[0].format(0, len(texts[0]) - step.at % 2, {"w": step.json})
        case "xml embed" if texts:
            texts[0].insert_embed(0, step.json)
        case "xml remove" if len(nodes.children):
            del nodes.children[step.at % len(nodes.children)]


def live(updates: list[bytes]) -> LiveDocument:
    return LiveDocument(bytes_max=1 << 24, roots_max=8, updates=updates, roots=ROOTS)


def built(updates: list[bytes], times: int) -> LiveDocument:
    found = live(updates)
    for _ in range(times):
        found = live([found.snapshot()])
    return found


@examples(200)
@given(st.lists(made, max_size=30), st.randoms(use_true_random=False))
def test_the_same_updates_have_one_form(steps: list[Made], chosen: random.Random) -> None:
    crowd = Crowd()
    for step in steps:
        crowd.make(step)
    updates = [each.update for each in crowd.issued]
    ways = {"in order": live(updates), "opened twice": built(updates, 1), "opened often": built(updates, 3)}
    orders = [[updates[index] for index in causal_order(crowd.issued, chosen)] for _ in range(2)]
    merged = ways["merged"] = live([])
    for update in orders[0]:
        merged.merge(update)
    some = chosen.randint(0, len(updates))
    folded = Building()
    folded.add(orders[1][:some])
    ways["compacted"] = live([folded.snapshot(), *orders[1]])
    ways["opened between"] = live([built(orders[1][:some], 2).snapshot(), *orders[1][some:]])
    ways["encoded by the engine"] = live([pycrdt.merge_updates(*orders[1])] if updates else [])
    for nth, doc in enumerate(crowd.docs):  # What a client has, deleted content or not, before or after the rest.
        ways[f"client {nth} first"] = live([doc.get_update(), *orders[0]])
        ways[f"client {nth} last"] = live([*orders[1], doc.get_update()])
    forms = {way: found.canonical() for way, found in ways.items()}
    assert {way for way, form in forms.items() if form != forms["in order"]} == set()


@pytest.mark.parametrize("value", MOVING)
def test_a_number_that_the_engine_moves_is_shown_alike(value: float) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=7)
    node = pycrdt.XmlText("a")
    doc.get("x", type=pycrdt.XmlFragment).children.append(node)
    node.format(0, 1, {"w": value})
    node.insert_embed(1, {"w": [value]})
    shown = [built([doc.get_update()], times).to_json() for times in range(6)]
    assert shown == shown[:1] * 6


@examples(300)
@given(number.filter(lambda each: isinstance(each, float)))
def test_numbers_are_read_as_the_engine_reads_them(value: float) -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=7)
    doc.get("t", type=pycrdt.Text).insert_embed(0, value)
    found: pycrdt.Doc[Any] = pycrdt.Doc(client_id=8)
    found.apply_update(doc.get_update())
    (moved, _), *_ = found.get("t", type=pycrdt.Text).diff()
    assert repr(float(moved)) == repr(untold.read(value))
    assert repr(untold.settled(value)) == repr(untold.settled(untold.read(value)))
