"""Updates of clients that declare no roots."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RootConflict, ShoalError, TooLarge
from shoal.kinds.document.state import document, yjs
from shoal.kinds.document.state.document import RootKind, Update
from shoal.kinds.document.state.live import EMPTY
from tests.crdt.document.edits import STEPS, edited, live, map_update, mutation, stamp
from tests.support.edits import Step, causal_order, play
from tests.support.examples import examples
from tests.support.rows import DictRows


def text_update(text: str, client_id: int) -> bytes:
    doc, root = edited("t", pycrdt.Text, client_id)
    root.insert(0, text)
    return doc.get_update()


@examples(60)
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


def test_an_operation_without_news_is_none() -> None:
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


@pytest.mark.answers("yjs-update-is-acknowledged-but-not-stored")
@examples(60)
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


def test_an_empty_guessed_text_may_become_an_array() -> None:
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


def test_a_guessed_kind_with_content_is_fixed() -> None:
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
