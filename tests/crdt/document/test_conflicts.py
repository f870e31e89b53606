"""What concurrent sets of one key lost: agreed with the engine, and with who had seen what."""

from __future__ import annotations

from typing import Any, NamedTuple

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.document.state import conflicts
from shoal.kinds.document.state.conflicts import Conflicts, Overwritten
from shoal.kinds.document.state.content import to_py
from shoal.kinds.document.state.live import LiveDocument
from tests.support.edits import ACTIONS, AUTHORS, ROOTS, Step, causal_order, play
from tests.support.examples import examples

STEPS = st.lists(st.builds(Step, st.integers(0, AUTHORS - 1), st.integers(0, ACTIONS - 1), st.integers(0, 23)), max_size=30)
SETS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ssstd"), st.integers(0, 2)), max_size=25)


class History(NamedTuple):
    updates: list[bytes]
    lost: set[int]  # Sets, by their number, that nobody saw who overwrote them, and that do not stand.
    deleted: set[int]


def history(steps: list[tuple[int, str, int]]) -> History:
    """Three authors set keys of one map to numbers of their own, delete them, and take over what others have."""
    docs = [pycrdt.Doc[Any](client_id=client) for client in (9, 5, 2**40)]
    maps = [doc.get("m", type=pycrdt.Map) for doc in docs]
    updates: list[bytes] = []
    sets: set[int] = set()
    seen: set[int] = set()
    deleted: set[int] = set()
    for number, (author, what, which) in enumerate(steps, 1):
        mine, key = maps[author], "xy"[which % 2]
        if what == "t":
            docs[author].apply_update(docs[which].get_update())
            continue
        state, there = docs[author].get_state(), mine.get(key)
        if there is not None:
            seen.add(int(there))
        if what == "s":
            mine[key] = number
            sets.add(number)
        elif there is not None:
            del mine[key]
            deleted.add(int(there))
        updates.append(docs[author].get_update(state))
    for doc in docs:
        for update in updates:
            doc.apply_update(update)
    stands = {int(value) for value in to_py(maps[0]).values()}
    return History(updates, sets - seen - stands, deleted)


def found(updates: list[bytes]) -> list[Overwritten]:
    taken = Conflicts()
    for index, update in enumerate(updates):
        taken.add(update, bytes([index]))
    return list(taken.overwritten())


def losses_are_told(steps: list[tuple[int, str, int]]) -> None:
    made = history(steps)
    told = {lost.lost for lost in found(made.updates)}
    assert made.lost <= told
    assert told - made.lost <= made.deleted  # Somebody deleted it and did not know that it was lost.


@examples(150)
@given(SETS)
def test_values_overwritten_unseen_are_told_and_no_others(steps: list[tuple[int, str, int]]) -> None:
    losses_are_told(steps)


def test_a_loss_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts._Key, "lost", lambda self: set())
    with pytest.raises(AssertionError):
        losses_are_told([(0, "s", 0), (1, "s", 0)])


def shown(taken: Conflicts) -> dict[str, Any]:
    """The root map `m`, as the sets of its keys make it."""
    return {
        key: taken._value(sets.entries[-1].id, sets.entries[-1].value, 0)
        for (container, key), sets in taken._keys.items()
        if container == "m" and not sets.entries[-1].deleted
    }


@examples(60)
@given(STEPS, st.randoms(use_true_random=False))
def test_replicas_show_the_engines_result_in_any_order(steps: list[Step], rng: Any) -> None:
    issued = play(steps)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=77)
    root = doc.get("m", type=pycrdt.Map)
    taken = Conflicts()
    for index in causal_order(issued, rng):
        doc.apply_update(issued[index].update)
        taken.add(issued[index].update, bytes([index]))
        assert shown(taken) == to_py(root)


@examples(60)
@given(SETS)
def test_changes_told_as_they_happen_are_told_finally(steps: list[tuple[int, str, int]]) -> None:
    """But for what somebody built on meanwhile, who had seen no more."""
    taken, live = Conflicts(), set[Any]()
    for index, update in enumerate(history(steps).updates):
        live |= {lost.id for lost in taken.add(update, bytes([index]))}
    assert {lost.id for lost in taken.overwritten()} <= live


def compacted(updates: list[bytes]) -> bytes:
    return LiveDocument(bytes_max=1 << 20, roots_max=8, updates=updates, roots=ROOTS).snapshot()


@examples(150)
@given(SETS, st.integers(0, 25))
def test_over_what_was_compacted_later_losses_are_told_and_no_others(steps: list[tuple[int, str, int]], covered: int) -> None:
    made = history(steps)
    before, after = made.updates[:covered], made.updates[covered:]
    whole, early = ({lost.id for lost in found(updates)} for updates in (made.updates, before))
    told = {lost.id for lost in found([compacted(before), *after])}
    assert told <= whole
    assert whole - told <= early


@examples(60)
@given(STEPS, st.integers(0, 30), st.randoms(use_true_random=False))
def test_over_what_was_compacted_what_stands_is_what_the_engine_shows(steps: list[Step], covered: int, rng: Any) -> None:
    issued = play(steps)
    order = causal_order(issued, rng)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=77)
    root = doc.get("m", type=pycrdt.Map)
    taken = Conflicts()
    for update in [
        compacted([issued[index].update for index in order[:covered]]),
        *(issued[i].update for i in order[covered:]),
    ]:
        doc.apply_update(update)
        taken.add(update)
        assert shown(taken) == to_py(root)


def test_a_key_that_was_set_again_and_again_is_one_loss_and_shows_its_last_value() -> None:
    one, other = pair()
    for number in range(4):
        one.get("m", type=pycrdt.Map)["k"] = number  # In its update those that are gone are one run.
    taken = Conflicts()
    taken.add(one.get_update())
    assert shown(taken) == {"k": 3}
    other.get("m", type=pycrdt.Map)["k"] = "unseen"
    taken.add(other.get_update())
    [lost] = taken.overwritten()
    assert {lost.lost, lost.stands} == {3, "unseen"}


def deleted_run(client: int, length: int) -> bytes:
    """An update of a few bytes: so many sets of the key `k` of the root `m`, all of them replaced or deleted."""
    varint = bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    # One client with one struct from clock 0: deleted content under a key of a root; then the delete set of it.
    struct = bytes([1, 1, client, 0, 0x21, 1, 1]) + b"m" + bytes([1]) + b"k" + bytes(varint)
    return struct + bytes([1, client, 1, 0]) + bytes(varint)


def test_a_run_of_replaced_sets_costs_nothing_for_its_length() -> None:
    """One entry for each set would take longer than anybody waits, and more memory than there is."""
    taken = Conflicts()
    taken.add(deleted_run(1, 2**31 - 1))
    assert [len(sets.entries) for sets in taken._keys.values()] == [1]
    other: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    other.get("m", type=pycrdt.Map)["k"] = "stands"
    taken.add(other.get_update())
    assert shown(taken) == {"k": "stands"}
    assert list(taken.overwritten()) == []  # What was deleted is no loss.


def test_a_set_that_saw_the_middle_of_a_run_splits_it() -> None:
    one, other = pair()
    for number in range(4):
        one.get("m", type=pycrdt.Map)["k"] = number
        if number == 1:
            other.apply_update(one.get_update())
    other.get("m", type=pycrdt.Map)["k"] = "saw 1"
    taken = Conflicts()
    taken.add(one.get_update())
    taken.add(other.get_update())
    one.apply_update(other.get_update())
    assert shown(taken) == to_py(one.get("m", type=pycrdt.Map))
    [lost] = taken.overwritten()
    assert {lost.lost, lost.stands} == {3, "saw 1"}


def pair() -> list[pycrdt.Doc[Any]]:
    return [pycrdt.Doc(client_id=1), pycrdt.Doc(client_id=2)]


def test_a_deletion_in_place_is_no_loss() -> None:
    one, other = pair()
    one.get("m", type=pycrdt.Map)["k"] = 1
    made, state = one.get_update(), one.get_state()
    del one.get("m", type=pycrdt.Map)["k"]
    other.get("m", type=pycrdt.Map)["k"] = 2  # Greater client: it stands, and saw neither.
    assert found([made, one.get_update(state), other.get_update()]) == []


def test_a_lost_object_is_told_with_all_that_was_in_it() -> None:
    one, other = pair()
    inner = {"t": pycrdt.Text("hé😀"), "l": pycrdt.Array([1, pycrdt.Map({"deep": b"x"})]), "n": None, "f": 1.5, "big": 2**60}
    one.get("m", type=pycrdt.Map)["k"] = pycrdt.Map(inner)
    other.get("m", type=pycrdt.Map)["k"] = [True, {"x": -7}]
    [lost] = found([one.get_update(), other.get_update()])
    assert lost.lost == {"big": float(2**60), "f": 1.5, "l": [1, {"deep": b"x"}], "n": None, "t": "hé😀"}
    assert (lost.path, lost.stands, lost.lost_client, lost.stands_client) == (("m", "k"), [True, {"x": -7}], 1, 2)
    assert lost.at == bytes([1])


def test_a_loss_within_a_list_says_so_without_an_index() -> None:
    one, other = pair()
    one.get("a", type=pycrdt.Array).extend(["x", pycrdt.Map({"inner": pycrdt.Map({"k": 0})})])
    other.apply_update(first := one.get_update())
    state = one.get_state()
    one.get("a", type=pycrdt.Array)[1]["inner"]["k"] = 1
    other.get("a", type=pycrdt.Array)[1]["inner"]["k"] = 2
    [lost] = found([first, one.get_update(state), other.get_update(state)])
    assert (lost.path, lost.lost, lost.stands) == (("a", "*", "inner", "k"), 1, 2)


def test_the_overwriter_stays_told_after_another_set() -> None:
    one, other = pair()
    one.get("m", type=pycrdt.Map)["k"] = 1
    other.get("m", type=pycrdt.Map)["k"] = 2
    third: pycrdt.Doc[Any] = pycrdt.Doc(client_id=3)
    updates = [one.get_update(), other.get_update()]
    for update in updates:
        third.apply_update(update)
    state = third.get_state()
    third.get("m", type=pycrdt.Map)["k"] = 3
    [lost] = found([*updates, third.get_update(state)])
    assert (lost.lost, lost.stands, lost.stands_client) == (1, 3, 2)


def test_an_attribute_of_xml_that_two_set_at_once_is_told() -> None:
    ours: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    element = ours.get("x", type=pycrdt.XmlFragment).children.append(pycrdt.XmlElement("p", {"level": "1"}))
    theirs: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    theirs.apply_update(ours.get_update())
    began = ours.get_state()
    element.attributes["level"] = "2"
    theirs.get("x", type=pycrdt.XmlFragment).children[0].attributes["level"] = "3"
    [lost] = found([ours.get_update(), theirs.get_update(began)])
    assert (lost.path, lost.lost, lost.stands) == (("x", "*", "level"), "2", "3")


def test_a_page_of_xml_that_was_lost_is_shown() -> None:
    docs = [pycrdt.Doc[Any](client_id=client) for client in (1, 2)]
    for doc, tag in zip(docs, "ab", strict=True):
        element = pycrdt.XmlElement(tag, {"k": "v"}, [pycrdt.XmlText("t")])
        doc.get("m", type=pycrdt.Map)["page"] = pycrdt.XmlFragment([element])
    [lost] = found([doc.get_update() for doc in docs])
    assert lost.lost == [{"tag": "a", "attributes": {"k": "v"}, "children": ["t"]}]
    assert lost.stands == [{"tag": "b", "attributes": {"k": "v"}, "children": ["t"]}]
