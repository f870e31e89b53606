"""Documents: rows that converge, and a live replica that holds whole causal histories only."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pycrdt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import values
from shoal.crdt.document import document, yjs
from shoal.crdt.document.conflicts import Conflicts
from shoal.crdt.document.content import open_root, to_py
from shoal.crdt.document.diff_mirror import DiffMirror
from shoal.crdt.document.document import RootKind, Update
from shoal.crdt.document.editing import Editor, on_copy
from shoal.crdt.document.live import EMPTY, NESTING_MAX, LiveDocument
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import InvalidName, InvalidValue, NotReady, RootConflict, ShoalError, StoreCorrupt, TooLarge
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, causal_order, play
from tests.support.rows import DictRows

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=20)


def live(*, bytes_max: int = 1 << 20, roots_max: int = 8, **built: Any) -> LiveDocument:
    return LiveDocument(bytes_max=bytes_max, roots_max=roots_max, **built)


def stamp(origin: int, sequence: int, hlc: int) -> Stamp:
    return Stamp(Dot(Origin(bytes([origin]) * 16), sequence), hlc, 0, VersionVector())


def mutation(payload: bytes, roots: dict[str, RootKind]) -> Update:
    return Update(hashlib.sha256(payload).digest(), roots)


def edited(root: str, kind: type[Any], client_id: int = 5) -> tuple[pycrdt.Doc[Any], Any]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    return doc, doc.get(root, type=kind)


def map_update(value: Any, *, client_id: int = 5, root: str = "m") -> bytes:
    doc, entries = edited(root, pycrdt.Map, client_id)
    entries["k"] = value
    return doc.get_update()


# ── rows ──────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
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
    built = live(roots=ROOTS, snapshot=other.snapshot())
    assert one.canonical() == other.canonical() == built.canonical()
    assert one.to_json() == other.to_json() == built.to_json()


@settings(max_examples=60, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_replicas_of_one_history_are_equal_byte_for_byte_in_any_causal_order(steps: list[Step], rng: Any) -> None:
    replicas_agree(steps, rng)


def test_the_convergence_test_finds_a_replica_that_forgets_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(100))
    monkeypatch.setattr(yjs, "pack_deletes", lambda deletes: bytes([next(counts)]) if deletes else b"")
    import random

    with pytest.raises(AssertionError):
        replicas_agree([Step(0, 1, 1), Step(0, 2, 0)], random.Random(1))


@settings(max_examples=60, deadline=None)
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


def test_two_clients_that_share_an_id_by_mistake_differ_in_canonical_form() -> None:
    one, other = live(roots=ROOTS), live(roots=ROOTS)
    one.integrate(map_update(1), {})
    other.integrate(map_update(2), {})
    assert one.state() == other.state()
    assert one.canonical() != other.canonical()


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
    other = live(roots={"m": "map"}, snapshot=live(updates=updates[:3]).snapshot(), updates=updates[3:])
    assert one.to_py() == other.to_py() == {"m": {"k0": 4, "k1": 3}}
    assert one.canonical() == other.canonical()


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


# ── what is refused ───────────────────────────────────────────────────────────


def unchanged_by(update: bytes, roots: dict[str, Any], error: type[ShoalError], **bounds: int) -> None:
    replica = live(**bounds)
    replica.integrate(map_update(1, client_id=4), {"m": "map"})
    before = replica.canonical(), replica.snapshot()
    with pytest.raises(error) as raised:
        replica.integrate(update, roots)
    assert raised.value.written == "no"
    assert (replica.canonical(), replica.snapshot()) == before


def test_an_early_update_leaves_the_document_as_it_is() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "a"
    state = doc.get_state()
    text += "b"
    unchanged_by(doc.get_update(state), {"t": "text"}, NotReady)


def test_an_early_update_is_applied_once_it_is_ready() -> None:
    doc, text = edited("t", pycrdt.Text)
    text += "a"
    first, state = doc.get_update(), doc.get_state()
    text += "b"
    replica = live()
    with pytest.raises(NotReady):
        replica.integrate(doc.get_update(state), {"t": "text"})
    replica.integrate(first, {"t": "text"})
    replica.integrate(doc.get_update(state), {})
    assert replica.to_py() == {"t": "ab"}


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"hello", b"\xff" * 30, EMPTY + b"\x00"])
def test_garbage_is_refused(garbage: bytes) -> None:
    unchanged_by(garbage, {}, InvalidValue)


def test_an_update_over_the_bound_is_refused_unread() -> None:
    unchanged_by(b"\xff" * 200, {}, TooLarge, bytes_max=199)


def test_a_document_that_would_pass_its_bound_is_refused() -> None:
    unchanged_by(map_update("x" * 150), {}, TooLarge, bytes_max=180)


def test_overwritten_content_does_not_count_against_the_bound() -> None:
    replica = live(bytes_max=400)
    doc, entries = edited("m", pycrdt.Map)
    for _ in range(10):
        state = doc.get_state()
        entries["k"] = "x" * 150
        replica.integrate(doc.get_update(state), {"m": "map"})
    assert replica.to_py() == {"m": {"k": "x" * 150}}


def test_a_root_that_nobody_declared_is_refused() -> None:
    unchanged_by(map_update(1, root="other"), {}, InvalidValue)


@pytest.mark.parametrize(
    ("roots", "error"), [({"m": "text"}, RootConflict), ({"n": "tree"}, InvalidValue), ({"": "map"}, InvalidName)]
)
def test_a_declaration_that_cannot_hold_is_refused(roots: dict[str, Any], error: type[ShoalError]) -> None:
    unchanged_by(EMPTY, roots, error)


def test_a_root_used_as_another_kind_than_declared_is_refused() -> None:
    unchanged_by(map_update(1, root="other"), {"other": "text"}, RootConflict)
    doc, items = edited("m", pycrdt.Array)
    items.append(1)
    unchanged_by(doc.get_update(), {}, RootConflict)


def test_what_is_deleted_of_another_kind_is_no_conflict_and_what_is_left_beside_it_is() -> None:
    doc, items = edited("m", pycrdt.Array)
    items += [1, 2]
    del items[0]
    unchanged_by(doc.get_update(), {}, RootConflict)  # What is left names no root, only its neighbour.
    del items[0]
    replica = live()
    replica.integrate(doc.get_update(), {"m": "map"})
    assert replica.to_json() == {"m": {}}


def test_roots_are_bounded() -> None:
    unchanged_by(EMPTY, {"a": "map", "b": "map"}, TooLarge, roots_max=2)


def test_shared_types_that_nest_too_deep_are_refused_however_they_arrive() -> None:
    replica = live()
    doc, inner = edited("m", pycrdt.Map)
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            inner["k"] = pycrdt.Map()
            inner = inner["k"]
            replica.integrate(doc.get_update(state), {"m": "map"})
    assert replica.to_json()["m"] != {}


def test_elements_of_xml_that_nest_too_deep_are_refused() -> None:
    replica = live()
    doc, root = edited("x", pycrdt.XmlFragment)
    inner: Any = root
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            inner = inner.children.append(pycrdt.XmlElement("p"))
            replica.integrate(doc.get_update(state), {"x": "xml"})
    assert len(replica.to_json()["x"]) == 1


def test_types_that_no_reader_looks_at_nest_no_deeper() -> None:
    # Each is embedded in the text before it; opened again, a replica knows nothing of their depths.
    doc, text = edited("t", pycrdt.Text)
    updates: list[bytes] = []
    with pytest.raises(TooLarge, match="nest deeper"):
        for _ in range(NESTING_MAX + 1):
            state = doc.get_state()
            child = pycrdt.Text()
            text.insert_embed(0, child)
            text = child
            reopened = live(updates=updates, roots={"t": "text"})
            reopened.integrate(doc.get_update(state), {})
            updates.append(doc.get_update(state))
    assert len(updates) == NESTING_MAX


def test_many_flat_shared_types_are_no_nesting() -> None:
    replica = live()
    doc, items = edited("a", pycrdt.Array)
    for number in range(NESTING_MAX + 50):
        state = doc.get_state()
        items.extend([number, pycrdt.Map({"n": number})])
        replica.integrate(doc.get_update(state), {"a": "array"})
    assert len(replica.to_py()["a"]) == 2 * (NESTING_MAX + 50)


def test_the_deepest_document_that_is_allowed_can_be_shown() -> None:
    deepest: Any = 1
    for _ in range(yjs.VALUE_DEPTH_MAX):
        deepest = [deepest]
    doc, inner = edited("m", pycrdt.Map)
    for _ in range(NESTING_MAX):
        inner["k"] = pycrdt.Map()
        inner = inner["k"]
    inner["k"] = deepest
    replica = live()
    replica.integrate(doc.get_update(), {"m": "map"})
    json.dumps(replica.to_json())


def test_the_deepest_xml_that_is_allowed_can_be_shown_and_wanted_again() -> None:
    deepest: Any = 1
    for _ in range(yjs.VALUE_DEPTH_MAX - 1):
        deepest = {"k": deepest}
    doc, inner = edited("x", pycrdt.XmlFragment)
    for _ in range(NESTING_MAX - 1):
        inner = inner.children.append(pycrdt.XmlElement("p"))
    inner.children.append(pycrdt.XmlText()).insert(0, "a", {"format": deepest})
    inner.attributes["deep"] = {"k": deepest}
    replica = live()
    replica.integrate(doc.get_update(), {"x": "xml"})
    text = json.dumps(replica.to_json())
    wanted = values.from_json(json.loads(text))
    assert on_copy(replica, lambda doc: Editor().replace(doc, replica.roots, wanted), client_id=9).update == EMPTY


CONTENTS = {
    "value": (8, b"\1\x77\1v"),
    "characters": (4, b"\1c"),
    "array": (7, b"\0"),
    "map": (7, b"\1"),
    "text": (7, b"\2"),
    "element": (7, b"\3\1p"),
    "fragment": (7, b"\4"),
    "xmltext": (7, b"\6"),
    "embedded": (5, b'\7{"a":1}'),
    "format": (6, b"\1b\4true"),
    "bytes": (3, b"\1b"),
}


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("parent", ["array", "map", "text", "element", "fragment", "xmltext"])
def test_whatever_a_shared_type_holds_that_it_should_not_can_be_shown(parent: str, content: str, keyed: bool) -> None:
    """No well-formed update makes a document that cannot be read, told of and built again."""
    around = bytes([0x20 | 7, 1, 1]) + b"m" + b"\1x" + CONTENTS[parent][1]
    number, body = CONTENTS[content]
    within = bytes([number | (0x20 if keyed else 0), 0, 5, 0]) + (b"\1k" if keyed else b"") + body
    # Once more beside it, which names neither a parent nor a key.
    beside = bytes([0x80 | number, 5, 1]) + body
    update = bytes([1, 3, 5, 0]) + around + within + beside + b"\0"
    replica = live()
    if content == "format" and keyed:
        with pytest.raises(InvalidValue):
            replica.integrate(update, {"m": "map"})
        return
    replica.integrate(update, {"m": "map"})
    shown = replica.to_json()
    assert live(updates=[update], roots={"m": "map"}).canonical() == replica.canonical()
    Conflicts().add(update)
    assert DiffMirror("m", open_root(replica.fork(client_id=7), "m", "map")).to_py() == values.from_json(shown)["m"]


def test_a_format_that_inherits_a_key_is_no_value() -> None:
    around = bytes([0x20 | 7, 1, 1]) + b"m" + b"\1x" + CONTENTS["map"][1]
    keyed = bytes([0x20 | 8, 0, 5, 0]) + b"\1k" + CONTENTS["value"][1]
    beside = bytes([0x80 | 6, 5, 1]) + CONTENTS["format"][1]
    replica = live()
    replica.integrate(bytes([1, 3, 5, 0]) + around + keyed + beside + b"\0", {"m": "map"})
    assert replica.to_py() == {"m": {"x": {}}}


def test_a_check_changes_nothing() -> None:
    replica = live()
    replica.check(map_update(1), {"m": "map"})
    assert replica.roots == {}
    assert replica.snapshot() == EMPTY


@settings(max_examples=60, deadline=None)
@given(STEPS.filter(lambda steps: bool(play(steps))), st.data())
def test_a_damaged_update_is_refused_or_applied_whole(steps: list[Step], data: st.DataObject) -> None:
    update = bytearray(data.draw(st.sampled_from(play(steps))).update)
    update[data.draw(st.integers(0, len(update) - 1))] = data.draw(st.integers(0, 255))
    replica = live(roots=ROOTS)
    try:
        replica.integrate(bytes(update), {})
    except ShoalError:
        assert replica.snapshot() == EMPTY
    else:
        assert live(roots=ROOTS, snapshot=replica.snapshot()).canonical() == replica.canonical()


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


# ── updates of clients that declare nothing ───────────────────────────────────


def text_update(text: str, client_id: int) -> bytes:
    doc, root = edited("t", pycrdt.Text, client_id)
    root.insert(0, text)
    return doc.get_update()


@settings(max_examples=60, deadline=None)
@given(STEPS, st.randoms(use_true_random=False), st.integers(1, 7))
def test_updates_together_come_to_what_each_alone_does(steps: list[Step], rng: Any, many: int) -> None:
    """In any causal order, in groups of any size, some of them repeated; and again, from the updates that were stored."""
    issued = play(steps)
    order = causal_order(issued, rng)
    alone, together = live(), live()
    for index in order:
        alone.integrate_all([issued[index].update])
    stored: list[bytes] = []
    kinds: dict[str, RootKind] = {}
    for start in range(0, len(order), many):
        group = [issued[index].update for index in order[start : start + many]]
        before = together.canonical()
        made = together.integrate_all(group + group[:1]).together
        if made is None:  # It deleted what was deleted already.
            assert together.canonical() == before
            continue
        stored.append(made.update)
        kinds.update(made.inferred)
    assert together.canonical() == alone.canonical()
    again = live(updates=stored, roots=kinds)
    assert again.canonical() == together.canonical()


def test_what_brings_nothing_new_is_none() -> None:
    doc, entries = edited("m", pycrdt.Map)
    entries["a"], entries["b"] = 1, 2
    before = doc.get_update()
    del entries["a"]
    replica = live()
    assert replica.integrate_all([before]).together is not None
    assert replica.integrate_all([before, EMPTY]).together is None
    assert replica.integrate_all([doc.get_update()]).together is not None, "a deletion is new, though no clock moves"
    assert replica.integrate_all([doc.get_update()]).together is None
    assert replica.to_py() == {"m": {"b": 2}}


@pytest.mark.parametrize("bad", [b"\x01", map_update(1, root="t"), b"\x00" * 3])
def test_of_updates_together_all_are_applied_or_none(bad: bytes) -> None:
    replica = live()
    replica.integrate_all([text_update("kept", 1)])
    before = replica.canonical()
    with pytest.raises(ShoalError):
        replica.integrate_all([text_update("x", 2), bad])
    assert replica.canonical() == before
    assert replica.integrate_all([text_update("x", 2)]).together is not None


def test_updates_together_may_build_on_each_other_and_one_that_builds_on_what_is_missing_is_left_out() -> None:
    doc, root = edited("t", pycrdt.Text)
    root.insert(0, "a")
    first, state = doc.get_update(), doc.get_state()
    root.insert(1, "b")
    second = doc.get_update(state)
    replica = live()
    made = replica.integrate_all([second, text_update("other", 7)])
    assert made.early == [(0, doc.client_id, 1)]
    assert made.together is not None
    assert replica.to_py() == {"t": "other"}
    replica = live()
    assert replica.integrate_all([second, first]).early == []
    assert replica.to_py() == {"t": "ab"}


@settings(max_examples=60, deadline=None)
@given(STEPS, st.randoms(use_true_random=False), st.integers(1, 7), st.booleans())
def test_updates_in_any_order_come_to_the_same_if_each_early_one_is_tried_once_its_clock_is_reached(
    steps: list[Step], rng: Any, many: int, merge: bool
) -> None:
    updates = [each.update for each in play(steps)]
    expected = live()
    expected.integrate_all(updates)
    rng.shuffle(updates)
    if merge and len(updates) > 2:
        updates = [pycrdt.merge_updates(*updates[: len(updates) // 2]), *updates[len(updates) // 2 :]]
    replica = live()
    waiting: list[tuple[int, int, bytes]] = []
    for start in range(0, len(updates), many):
        group = updates[start : start + many]
        while group:
            waiting += [(client, clock, group[which]) for which, client, clock in replica.integrate_all(group).early]
            reached = yjs.parse_state(replica.state())
            group = [update for client, clock, update in waiting if clock <= reached.get(client, 0)]
            waiting = [each for each in waiting if each[1] > reached.get(each[0], 0)]
    # Merged updates may have holes, and then each need a part of another: they are ready together.
    assert merge or waiting == []
    assert replica.integrate_all([update for *_, update in waiting]).early == []
    assert replica.canonical() == expected.canonical()


def test_too_many_inferred_roots_are_refused() -> None:
    replica = live(roots_max=1)
    replica.integrate_all([map_update(1)])
    with pytest.raises(TooLarge):
        replica.integrate_all([map_update(1, root="n", client_id=6)])


def test_what_was_taken_for_a_text_may_be_declared_an_array_while_it_shows_nothing() -> None:
    doc, items = edited("r", pycrdt.Array)
    items.append(1)
    del items[0]
    replica = live()
    replica.integrate_all([doc.get_update()])
    assert replica.roots == {"r": "text"}
    items.append(2)
    replica.integrate(doc.get_update(), {"r": "array"})
    assert replica.to_py() == {"r": [2]}
    with pytest.raises(RootConflict):
        replica.check(EMPTY, {"r": "text"})


def test_what_was_taken_for_what_it_shows_may_not() -> None:
    replica = live()
    replica.integrate_all([text_update("shown", 1), map_update(1)])
    others: list[dict[str, RootKind]] = [{"t": "array"}, {"t": "map"}, {"m": "text"}]
    for roots in others:
        with pytest.raises(RootConflict):
            replica.check(EMPTY, roots)


def test_a_declaration_counts_before_an_inference_in_any_order() -> None:
    taken, declared = (
        (stamp(1, 1, 1), Update(b"", inferred={"r": "text"}), EMPTY),
        (stamp(2, 1, 2), mutation(EMPTY, {"r": "array"}), EMPTY),
    )
    one, other = DictRows(), DictRows()
    for operation in (taken, declared):
        document.apply(one, *operation)
    for operation in (declared, taken, declared):
        document.apply(other, *operation)
    assert one.canonical() == other.canonical()
    assert document.roots(one) == {"r": "array"} == document.declared_roots(one)
