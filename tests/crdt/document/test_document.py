"""Documents: rows, convergence, reading."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.document.state import document, yjs
from shoal.kinds.document.state.content import to_py
from shoal.kinds.document.state.document import RootKind, Update
from shoal.kinds.document.state.live import EMPTY, Building
from tests.crdt.document.edits import STEPS, edited, live, map_update, mutation, stamp
from tests.support.edits import ROOTS, Step, causal_order, play
from tests.support.examples import examples
from tests.support.rows import DictRows

# ── rows ──────────────────────────────────────────────────────────────────────


@examples(30)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["map", "array", "text"])), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_rows_are_equal_whatever_the_order_and_duplication(declared: list[tuple[int, RootKind]], rng: Any) -> None:
    operations = [
        (stamp(origin, number, number), mutation(bytes([number]), {"r": kind}), bytes([number]))
        for number, (origin, kind) in enumerate(declared, 1)
    ]
    one, other = DictRows(), DictRows()
    for operation in operations:
        document.apply(one, *operation)
    for operation in rng.sample(operations, len(operations)) + operations[:2]:
        document.apply(other, *operation)
    assert one.canonical() == other.canonical()
    assert document.declarations(one, "r")[0].dot == min(operation[0].dot for operation in operations)


def test_the_declaration_that_loses_stays_visible() -> None:
    rows = DictRows()
    document.apply(rows, stamp(2, 1, 1), mutation(EMPTY, {"r": "map"}), EMPTY)
    document.apply(rows, stamp(1, 1, 2), mutation(EMPTY, {"r": "text"}), EMPTY)
    assert document.roots(rows) == {"r": "text"}
    assert [declared.kind for declared in document.declarations(rows, "r")] == ["text", "map"]


def test_the_author_of_the_least_dot_counts() -> None:
    named = [(stamp(number, 1, 9 - number), Update(b"", authors={7: name})) for number, name in ((1, "ada"), (2, "bob"))]
    for order in (named, named[::-1]):
        rows = DictRows()
        for at, update in order:
            document.declare(rows, at, update)
        assert document.authors(rows) == {7: "ada"}


def test_the_payload_of_an_operation_is_found_again() -> None:
    rows, when = DictRows(), stamp(1, 1, 1)
    document.apply(rows, when, mutation(b"payload", {}), b"payload")
    assert document.payload_of(rows, when, mutation(b"payload", {})) == b"payload"


@pytest.mark.parametrize("damage", [None, b"another"])
def test_a_payload_that_is_missing_or_changed_is_corruption(damage: bytes | None) -> None:
    rows, when = DictRows(), stamp(1, 1, 1)
    document.apply(rows, when, mutation(b"payload", {}), b"payload")
    key = b"U" + when.pack_position()
    rows.delete(key)
    if damage is not None:
        rows.put(key, damage)
    with pytest.raises(StoreCorrupt):
        document.payload_of(rows, when, mutation(b"payload", {}))


def test_updates_come_in_the_order_of_their_clocks_and_after_a_position() -> None:
    rows = DictRows()
    for number, hlc in enumerate((3, 1, 2), 1):
        document.apply(rows, stamp(1, number, hlc), mutation(bytes([hlc]), {}), bytes([hlc]))
    found = list(document.updates(rows))
    assert [payload for _, payload in found] == [b"\x01", b"\x02", b"\x03"]
    assert list(document.updates(rows, after=found[1][0])) == found[2:]


def test_the_mutation_survives_the_wire() -> None:
    sent = mutation(b"x", {"m": "map"})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Update) == sent


# ── convergence ───────────────────────────────────────────────────────────────


def replicas_agree(steps: list[Step], rng: Any) -> None:
    issued = play(steps)
    one, other = live(roots=ROOTS), live(roots=ROOTS)
    for index in causal_order(issued, rng):
        one.integrate(issued[index].update, {})
    for index in causal_order(issued, rng):
        other.integrate(issued[index].update, {})
        other.integrate(issued[index].update, {})
    built = live(roots=ROOTS, built=Building(other.snapshot()))
    assert one.canonical() == other.canonical() == built.canonical()
    assert one.to_json() == other.to_json() == built.to_json()


@pytest.mark.answers("applying-commutes", "client-id-loses-bits-between-versions")
@examples(60)
@given(STEPS, st.randoms(use_true_random=False))
def test_replicas_of_one_history_are_equal_byte_for_byte_in_any_causal_order(steps: list[Step], rng: Any) -> None:
    replicas_agree(steps, rng)


@pytest.mark.answers("yjs-state-vector-is-used-as-a-digest", "replica-that-forgets-deletions")
def test_the_convergence_test_finds_a_replica_that_forgets_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(yjs, "pack_deletes", lambda deletes: bytes([next(counts)]) if deletes else b"")
    import random

    with pytest.raises(AssertionError):
        replicas_agree([Step(0, 1, 1), Step(0, 2, 0)], random.Random(1))


@examples(60)
@given(STEPS, st.randoms(use_true_random=False))
def test_the_canonical_form_changes_whenever_an_update_changes_the_document(steps: list[Step], rng: Any) -> None:
    issued = play(steps)
    replica, seen = live(roots=ROOTS), [live(roots=ROOTS).canonical()]
    engine: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
    changes: list[bytes] = []
    engine.observe(lambda event: changes.append(event.update))
    for index in causal_order(issued, rng):
        # Two authors may delete the same thing: the second update then changes nothing.
        engine.apply_update(issued[index].update)
        replica.integrate(issued[index].update, {})
        if len(changes) == len(seen):
            assert replica.canonical() not in seen
            seen.append(replica.canonical())
        else:
            assert replica.canonical() == seen[-1]


@pytest.mark.answers("two-yjs-documents-share-a-client-id-and-diverge")
def test_two_clients_that_share_an_id_by_mistake_differ_in_canonical_form() -> None:
    one, other = live(roots=ROOTS), live(roots=ROOTS)
    one.integrate(map_update(1), {})
    other.integrate(map_update(2), {})
    assert one.state() == other.state()
    assert one.canonical() != other.canonical()


@pytest.mark.answers("yjs-state-vector-is-used-as-a-digest")
def test_a_deletion_alone_moves_the_canonical_form_and_not_the_state_vector() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "ab"
    replica = live(roots=ROOTS)
    replica.integrate(doc.get_update(), {})
    state, canonical = replica.state(), replica.canonical()
    text.clear()
    replica.integrate(doc.get_update(state), {})
    assert replica.state() == state
    assert replica.canonical() != canonical


def test_building_from_updates_is_integrating_them() -> None:
    doc, entries = edited("m", pycrdt.Map)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for number in range(5):
        entries[f"k{number % 2}"] = number
    one = live(roots={"m": "map"}, updates=updates)
    other = live(roots={"m": "map"}, built=Building(live(updates=updates[:3]).snapshot()), updates=updates[3:])
    assert one.to_py() == other.to_py() == {"m": {"k0": 4, "k1": 3}}
    assert one.canonical() == other.canonical()


@pytest.mark.answers("snapshot-drops-updates-that-wait")
def test_building_without_an_update_that_others_need_is_corruption() -> None:
    doc, text = edited("t", pycrdt.Text)
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    for character in "abc":
        text += character
    with pytest.raises(StoreCorrupt, match="missing"):
        live(roots={"t": "text"}, updates=[updates[0], updates[2]])
    with pytest.raises(StoreCorrupt, match="shoal verify"):
        live(updates=[b"garbage"])


# ── reading ───────────────────────────────────────────────────────────────────


def test_a_replica_that_lacks_something_is_sent_just_that() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "a"
    replica = live()
    replica.integrate(doc.get_update(), {"t": "text"})
    state = replica.state()
    text += "b"
    replica.integrate(doc.get_update(state), {})
    assert replica.update_since(state) == doc.get_update(state)
    assert replica.update_since(replica.state()) == EMPTY


@pytest.mark.parametrize("state", [b"", b"\x01", b"\xff" * 20, b"\x00\x00"])
def test_a_garbage_state_vector_is_refused(state: bytes) -> None:
    with pytest.raises(InvalidValue):
        live().update_since(state)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1, 1),
        (1.0, 1),
        (1.5, 1.5),
        (True, True),
        (None, None),
        (-(2**53) + 1, -(2**53) + 1),
        (2.0**60, 2.0**60),
        (float("inf"), {"$type": "float", "value": "inf"}),
        (b"hi", {"$type": "bytes", "value": "aGk="}),
        ([1, {"a": 2}], [1, {"a": 2}]),
        ({"$type": "x"}, {"$type": "dict", "value": [["$type", "x"]]}),
    ],
)
def test_values_are_shown_as_json(value: Any, shown: Any) -> None:
    replica = live()
    replica.integrate(map_update(value), {"m": "map"})
    found = replica.to_json()["m"]["k"]
    assert (found, type(found)) == (shown, type(shown))
    json.dumps(found, allow_nan=False)


def test_a_longer_integer_is_shown_rounded_also_where_it_was_set() -> None:
    doc, entries = edited("m", pycrdt.Map)
    entries["k"] = 2**63 - 1
    replica = live()
    replica.integrate(doc.get_update(), {"m": "map"})
    assert to_py(entries) == replica.to_py()["m"] == {"k": 2.0**63}


def test_numbers_beside_bytes_are_integers() -> None:
    replica = live()
    replica.integrate(map_update({"number": 5.0, "bytes": b"x"}), {"m": "map"})
    found = replica.to_py()["m"]["k"]
    assert (found, type(found["number"])) == ({"number": 5, "bytes": b"x"}, int)


def test_negative_zero_keeps_its_sign() -> None:
    replica = live()
    replica.integrate(map_update(-0.0), {"m": "map"})
    assert str(replica.to_py()["m"]["k"]) == "-0.0"


def test_a_fork_leaves_the_document_alone() -> None:
    replica = live()
    replica.integrate(map_update(1), {"m": "map"})
    fork = replica.fork(client_id=9)
    fork.get("m", type=pycrdt.Map)["k"] = 2
    assert replica.to_py() == {"m": {"k": 1}}
    replica.integrate(fork.get_update(replica.state()), {})
    assert replica.to_py() == {"m": {"k": 2}}
