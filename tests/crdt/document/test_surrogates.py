"""Characters of two UTF-16 units, cut by edits of Yjs clients: every replica shows what Yjs shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pycrdt
import pytest

import shoal
from shoal.kinds.document.state import surrogates, yjs
from shoal.kinds.document.state.compaction import _Proof
from shoal.kinds.document.state.live import Building, LiveDocument
from shoal.kinds.document.state.structs import walk
from shoal.kinds.document.state.surrogates import Pairs
from tests.clients.js.conftest import needs_node
from tests.support.histories import (
    A,
    History,
    deleted,
    delivered,
    document,
    generated,
    shown_by,
    shown_by_yjs,
    shuffled,
    typed,
)

AT_ONCE = 500
SHOAL = Path(shoal.__file__).parent

# ── against Yjs itself ────────────────────────────────────────────────────────


def replicas(history: History, random: Random) -> dict[str, LiveDocument]:
    """One document for each way in which a node, a peer or a compaction may receive the same updates."""
    updates, made = history.updates, {way: document() for way in ("in order", "shuffled", "in batches")}
    delivered(updates, made["in order"].merge)
    delivered(shuffled(updates, random), made["shuffled"].merge)
    rows = batches(made["in batches"], updates, random)
    made["from rows"] = document(updates=rows)
    made["merged"] = document(updates=history.merged)
    made["encoded"] = document(updates=[made["shuffled"].snapshot()])
    folded = Building()
    folded.add(updates[: random.randint(0, len(updates))])
    made["compacted"] = document(updates=[folded.snapshot(), *updates])
    return made


def batches(live: LiveDocument, updates: Sequence[bytes], random: Random) -> list[bytes]:
    """Deliver updates as a crowd sends them, and return what is stored of them."""
    rows: list[bytes] = []
    left = list(updates)
    while left:
        some = left[: random.randint(1, 6)]
        del left[: len(some)]
        random.shuffle(some)
        found = live.integrate_all(some)
        rows += [found.together.update] if found.together else []
        left = [some[each.which] for each in found.early] + left
    return rows


def check(seed: int, count: int) -> None:
    histories = list(generated(seed, count))
    encoded = []
    for history in histories:
        random = Random(history.seed)
        found = replicas(history, random)
        for way, replica in found.items():
            assert shown_by(replica.to_py()) == history.shown, (way, history.seed)
            assert replica.canonical() == found["in order"].canonical(), (way, history.seed)
        encoded.append(found["shuffled"].snapshot())
        with_whole = {document_of(shuffled([*history.updates, *history.whole], random)) for _ in range(3)}
        assert len(with_whole) == 1, history.seed
    assert shown_by_yjs(encoded) == [history.shown for history in histories]


def document_of(updates: Sequence[bytes]) -> bytes:
    live = document()
    delivered(updates, live.merge)
    return live.canonical()


@pytest.mark.answers("edit-between-two-utf-16-units")
@needs_node
def test_every_replica_shows_what_yjs_shows() -> None:
    check(0, 200)


@needs_node
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1000, 11_000, AT_ONCE))
def test_every_replica_shows_what_yjs_shows_for_long(seed: int) -> None:
    check(seed, AT_ONCE)


# ── each way to cut ───────────────────────────────────────────────────────────

BASE = typed("x😀y", 0, client=A)  # The pair has the clocks 1 and 2.
CUTS = {
    "an origin": (typed("|", 0, origin=(A, 1)), "x\ufffd|\ufffdy"),
    "both origins": (typed("|", 0, origin=(A, 1), right=(A, 2)), "x\ufffd|\ufffdy"),
    "a right origin": (typed("|", 0, right=(A, 2)), "|x\ufffd\ufffdy"),
    "a deletion that begins": (deleted(A, 2, 2), "x\ufffd"),
    "a deletion that ends": (deleted(A, 0, 2), "\ufffdy"),
    "a struct that begins": (typed("\ufffdy", 2, client=A, origin=(A, 1)), "x\ufffd\ufffdy"),
    "a struct that ends": (typed("x\ufffd", 0, client=A), "x\ufffd\ufffdy"),
    "other characters": (typed("x\ufffd\ufffdy", 0, client=A), "x\ufffd\ufffdy"),
}


@pytest.fixture(params=CUTS)
def cut(request: pytest.FixtureRequest) -> tuple[bytes, str]:
    return CUTS[request.param]


def text_of(live: LiveDocument) -> Any:
    return live.to_py()["t"]


def test_a_cut_pair_is_shown_as_two_replacements(cut: tuple[bytes, str]) -> None:
    live = document(updates=[BASE])
    live.merge(cut[0])
    assert text_of(live) == cut[1]


def test_base_and_cut_in_one_page_agree(cut: tuple[bytes, str]) -> None:
    assert text_of(document(updates=[BASE, cut[0]])) == cut[1]


def test_base_and_cut_in_one_batch_agree(cut: tuple[bytes, str]) -> None:
    for order in permutations([BASE, cut[0]]):
        live = document()
        together = live.integrate_all(order).together
        assert together is not None
        assert text_of(live) == text_of(document(updates=[together.update])) == cut[1]


@pytest.mark.parametrize("name", ["a struct that ends", "other characters"])
def test_a_cut_that_came_first_counts(name: str) -> None:
    live = document(updates=[CUTS[name][0]])
    live.merge(BASE)
    assert text_of(live) == CUTS[name][1]


def test_lengths_and_clocks_stay(cut: tuple[bytes, str]) -> None:
    live = document(updates=[BASE, cut[0]])
    assert yjs.parse_state(live.state())[A] == 4
    assert sum(item.length for item in walk(live.snapshot()).items if item.client == A) == 4


@pytest.mark.parametrize("at", [1, 3])
def test_an_edit_beside_a_pair_leaves_it_whole(at: int) -> None:
    live = document(updates=[BASE, typed("|", 0, origin=(A, at - 1), right=(A, at)), deleted(A, 3, 1)])
    assert text_of(live) == {1: "x|😀", 3: "x😀|"}[at]


def test_only_the_pair_that_is_cut_is_replaced() -> None:
    live = document(updates=[typed("é😀😁🇩", 0, client=A), typed("|", 0, origin=(A, 3))])
    assert text_of(live) == "é😀\ufffd|\ufffd🇩"


def test_updates_are_stored_as_they_came(cut: tuple[bytes, str]) -> None:
    live = document(updates=[BASE])
    together = live.integrate_all([cut[0]]).together
    assert together is None or together.update == cut[0]


def test_a_state_within_a_pair_gets_the_whole_pair() -> None:
    live = document(updates=[BASE])
    assert [(item.clock, item.length) for item in walk(live.update_since(yjs.pack_state({A: 2}))).items] == [(1, 3)]


@pytest.mark.parametrize(("merged", "holds"), [(CUTS["other characters"][0], True), (BASE, False)])
def test_a_compaction_with_a_cut_pair_is_no_proof(merged: bytes, holds: bool) -> None:
    proof = _Proof()
    proof.add([merged])
    proof.begin()
    proof.add([CUTS["other characters"][0]])
    assert proof.holds == holds


@pytest.mark.parametrize("cut", [(A, 2, 1), (A, 0, 2), (A, 2, 2), (A, 1, 1)])
def test_an_update_may_cut_its_own_pair(cut: tuple[int, int, int]) -> None:
    merged = BASE[:-1] + yjs.pack_delete_set([cut])
    assert document(updates=[merged]).canonical() == document(updates=[BASE, deleted(*cut)]).canonical()


def test_an_update_that_cuts_itself_is_stored_unchanged() -> None:
    merged = BASE[:-1] + yjs.pack_delete_set([(A, 2, 1)])
    together = document(updates=[]).integrate_all([merged]).together
    assert together is not None
    assert together.update == merged


# ── the engine ────────────────────────────────────────────────────────────────


def test_a_deleted_pair_costs_no_rebuilding() -> None:
    live = document(updates=[BASE, deleted(A, 1, 2)])
    before = live._replica.doc
    live.merge(typed("|", 0, origin=(A, 1)))
    assert live._replica.doc is before
    assert text_of(live) == "x|y"


def test_plain_updates_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogates, "_borders", lambda part: pytest.fail("it was read"))
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    doc.get("t", type=pycrdt.Text).insert(0, "größe")
    live = document(updates=[doc.get_update()])
    live.merge(typed("é", 0, origin=(1, 0)))


def test_updates_meet_the_engine_in_few_places() -> None:
    """In `Replica` and in mirrors, which fit them before; a copy takes what the engine encoded."""
    places = [path.relative_to(SHOAL) for path in SHOAL.rglob("*.py") for _ in range(path.read_text().count(".apply_update("))]
    assert sorted(map(str, places)) == [
        "kinds/document/handle/content.py",
        "kinds/document/handle/content.py",
        "kinds/document/shared/doc.py",
        "kinds/document/state/live.py",
        "kinds/document/state/surrogates.py",
        "kinds/document/state/surrogates.py",
    ]


def test_pairs_are_found_in_any_order() -> None:
    pairs = Pairs()
    pairs.add([(1, 9), (1, 2), (2, 5), (1, 2), (1, 4)])
    assert [cut in pairs for cut in ((1, 2), (1, 4), (1, 9), (2, 5), (1, 5), (3, 2))] == [True] * 4 + [False] * 2
    assert list(pairs.within(1, 2, 9)) == [4]
    pairs.remove([(1, 4), (2, 5)])
    assert (1, 4) not in pairs
    assert pairs
    pairs.remove([(1, 2), (1, 9)])
    assert not pairs


def test_a_pair_takes_four_bytes() -> None:
    pairs = Pairs()
    pairs.add((1, clock) for clock in range(1, 200, 2))
    assert pairs._middles[1].itemsize == 4
