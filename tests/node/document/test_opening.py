"""Documents that are opened and compacted in steps: what one step does, and what happens between two."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pycrdt
import pytest

from shoal.kinds.document.state import compaction, yjs
from shoal.kinds.document.state.live import Building
from shoal.node.handler import Target
from shoal.protocol import requests
from shoal.protocol.requests import Compact
from shoal.storage.commit import GroupCommit
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.document.test_compacting import compacted, merged, shown, typed, updates
from tests.node.writes.test_erasing import check_sound, swept
from tests.support.turns import Turns

PLAN = Target(Kind.DOCUMENT, "crew", "plan")
STEP = 4
SMALL = {"document_step_updates_max": STEP, "document_snapshot_updates": 10_000, "document_compact_updates": 10_000}


async def edited(bench: Bench, count: int, *, client_id: int = 1) -> None:
    """One update of the document for each edit."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
    text = doc.get("t", type=pycrdt.Text)
    session = bench.node.session()
    for _ in range(count):
        before = doc.get_state()
        text += "x"
        await session.call(requests.Update("crew", "plan", doc.get_update(before), {"t": "text"}))


def added(_building: Building, some: Sequence[bytes]) -> int:
    return len(some)


# ── how much one step does ────────────────────────────────────────────────────


@pytest.mark.answers("maintenance-stalls-requests")
@pytest.mark.parametrize("count", [40, 80])
async def test_an_opening_reads_a_bounded_number_of_updates_at_a_time(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, count)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    turns = Turns(monkeypatch, Building, "add", added)
    text = await shown(again)
    assert text == '{"t":"' + "x" * count + '"}'
    assert turns.most <= STEP + 1  # The last step adds what was withdrawn.
    assert turns.all == count + 1


@pytest.mark.answers("maintenance-stalls-requests")
async def test_a_large_snapshot_and_a_large_merged_update_are_read_in_pieces(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = SMALL | {"document_whole_bytes_max": 64, "document_snapshot_updates": 25}
    bench = open_bench(**tiny)
    session = bench.node.session()
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    entries = doc.get("m", type=pycrdt.Map)
    for number in range(30):
        before = doc.get_state()
        entries[f"k{number}"] = number
        await session.call(requests.Update("crew", "plan", doc.get_update(before), {"m": "map"}))
    text = await shown(bench)
    for _ in range(2):
        again = open_bench(bench.storage.left_by_crash(None), **tiny)
        turns = Turns(monkeypatch, yjs.Reader, "_walk", lambda *_: 1)
        assert await shown(again) == text
        assert turns.all >= 50
        assert turns.most <= 2 * STEP
        turns = Turns(monkeypatch, yjs.Reader, "_walk", lambda *_: 1)
        await compacted(bench)
        await swept(bench.storage)
        assert turns.most <= 2 * STEP
        check_sound(bench.storage)


@pytest.mark.parametrize("how", ["follow", "edit", "read together"])
async def test_the_first_request_opens_a_document_in_steps(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 40)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    session = again.node.session()
    turns = Turns(monkeypatch, Building, "add", added)
    if how == "follow":
        async with session.subscribe(requests.Follow("crew", "plan")) as pushes:
            await anext(aiter(pushes))
    elif how == "edit":
        await edited(again, 1, client_id=2)
    else:
        await session.call(requests.MultiRead([requests.ReadDocumentJson("crew", "plan")]))
    assert turns.most <= STEP + 1
    assert turns.all == 41


@pytest.mark.answers("maintenance-stalls-requests")
@pytest.mark.parametrize("count", [40, 80])
async def test_a_compaction_merges_a_bounded_number_of_updates_at_a_time(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, count)
    turns = Turns(monkeypatch, Building, "add", added)
    assert (await compacted(bench)).updates == count
    assert turns.most <= STEP
    assert turns.all == count + 1
    await swept(bench.storage)
    await edited(bench, STEP, client_id=2)
    turns = Turns(monkeypatch, Building, "add", added)
    assert (await compacted(bench)).updates == STEP
    assert turns.all <= STEP + 2  # The first merged update, what is new, and what was withdrawn.


async def test_a_compaction_pauses_between_its_steps(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 10 * STEP)
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1
        await asyncio.sleep(0)

    environment = replace(bench.simulated.environment, pause=pause)
    monkeypatch.setattr(bench.node._database, "_context", replace(bench.node._context, environment=environment))
    await compacted(bench)
    assert pauses >= 2 * 10  # One round decides what is covered, another merges it.


@pytest.mark.answers("maintenance-stalls-requests")
async def test_a_sweep_looks_at_a_bounded_number_of_updates_and_at_each_twice(
    open_bench: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 40)
    await compacted(bench)
    proved = Turns(monkeypatch, compaction._Proof, "add", lambda _proof, updates: len(updates))
    written = Turns(monkeypatch, GroupCommit, "write", lambda _commit, rows, *_ranges: len(rows))
    await swept(bench.storage)
    assert proved.most <= STEP
    assert proved.all == 40 + 2  # The merged update, and what was withdrawn.
    assert written.most <= STEP + 1
    assert updates(bench.storage) == 0


# ── what happens between two steps ────────────────────────────────────────────


async def test_writes_while_a_document_is_opened_are_in_it(open_bench: Opener) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 20)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    database = again.node.service._database
    opening = database.documents.opening(lambda: database.document(PLAN))
    next(opening)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=9)
    doc.get("t", type=pycrdt.Text).insert(0, "y")
    database.issue(requests.Update("crew", "plan", doc.get_update(), {"t": "text"}), None)
    for _ in opening:
        pass
    assert sorted(await shown(again)) == sorted('{"t":"' + "x" * 20 + 'y"}')


@pytest.mark.answers("work-in-steps-misses-what-changes-between-two")
async def test_an_update_that_comes_below_what_was_read_is_in_it() -> None:
    """It was made before, at a node that was apart."""
    async with Fleet("ab", **SMALL) as fleet:
        await fleet.isolate("b")
        await typed(fleet["b"].store(), "b")
        await typed(fleet["a"].store(), "aaaaaaaaaaaaaaaaaaaa")
        fleet["a"].node.service._database.documents._drop(PLAN.snapshot_key)
        database = fleet["a"].node.service._database
        opening = database.documents.opening(lambda: database.document(PLAN))
        for _ in range(4):
            next(opening)
        fleet.link_all("b")
        await fleet.converged()
        for _ in opening:
            pass
        assert (await shown(fleet["a"])).count("b") == 1
        assert await shown(fleet["a"]) == await shown(fleet["b"])


async def test_an_update_that_comes_below_a_snapshot_is_in_it() -> None:
    """It was made before, at a node that was apart; the document is not open when it comes."""
    async with Fleet("ab", document_snapshot_updates=2) as fleet:
        await fleet.isolate("b")
        await typed(fleet["b"].store(), "b")
        await typed(fleet["a"].store(), "aaaaaaaa")
        fleet["a"].node.service._database.documents._drop(PLAN.snapshot_key)
        fleet.link_all("b")
        await fleet.converged()
        assert (await shown(fleet["a"])).count("b") == 1
        assert await shown(fleet["a"]) == await shown(fleet["b"])


@pytest.mark.answers("work-in-steps-misses-what-changes-between-two")
async def test_a_document_that_is_deleted_while_it_is_opened_is_gone(open_bench: Opener) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 20)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    database = again.node.service._database
    opening = database.documents.opening(lambda: database.document(PLAN))
    next(opening)
    database.issue(requests.DeleteDocument("crew", "plan"), None)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=5)
    doc.get("t", type=pycrdt.Text).insert(0, "new")
    database.issue(requests.Update("crew", "plan", doc.get_update(), {"t": "text"}), None)
    for _ in opening:
        pass
    assert await shown(again) == '{"t":"new"}'


@pytest.mark.answers("work-in-steps-misses-what-changes-between-two")
async def test_rows_swept_while_a_document_opens_are_in_it(open_bench: Opener) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 20)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    database = again.node.service._database
    opening = database.documents.opening(lambda: database.document(PLAN))
    next(opening)
    await compacted(again)
    await swept(again.storage)
    for _ in opening:
        pass
    assert await shown(again) == '{"t":"' + "x" * 20 + '"}'


@pytest.mark.answers("work-in-steps-misses-what-changes-between-two")
async def test_updates_taken_by_another_compaction_are_not_lost(open_bench: Opener) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 20)
    database = bench.node.service._database
    request = Compact("crew", "plan")
    [steps] = database.preparations([(request, PLAN)])
    for _ in range(8):
        next(steps)
    await compacted(bench, at_least=2)
    await swept(bench.storage)
    for _ in steps:
        pass
    database.issue(request, None)
    await swept(bench.storage)
    assert merged(bench.storage) == 1
    assert await shown(bench) == '{"t":"' + "x" * 20 + '"}'
    check_sound(bench.storage)


async def test_two_that_open_a_document_at_once_read_it_once(open_bench: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 40)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    turns = Turns(monkeypatch, Building, "add", added)
    await asyncio.gather(*(shown(again) for _ in range(5)))
    assert turns.all == 41


async def test_a_document_is_opened_though_the_first_that_did_so_was_cancelled(open_bench: Opener) -> None:
    bench = open_bench(**SMALL)
    await edited(bench, 40)
    again = open_bench(bench.storage.left_by_crash(None), **SMALL)
    first = asyncio.create_task(shown(again))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert await shown(again) == '{"t":"' + "x" * 40 + '"}'


# ── at a peer ─────────────────────────────────────────────────────────────────


@pytest.mark.answers("maintenance-stalls-requests")
async def test_a_peer_checks_a_merged_update_a_bounded_number_of_structs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet("ab", **SMALL, document_step_bytes_max=64, short_bytes=64) as fleet:
        session = fleet["a"].node.session()
        doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
        entries = doc.get("m", type=pycrdt.Map)
        for number in range(60):
            before = doc.get_state()
            entries[f"k{number}"] = number
            await session.call(requests.Update("crew", "plan", doc.get_update(before), {"m": "map"}))
        await fleet.converged()
        turns = Turns(monkeypatch, yjs.Reader, "struct_in_steps", lambda *_: 1)
        await compacted(fleet["a"])
        await fleet.converged()
        assert turns.all >= 60
        assert turns.most <= 3 * STEP
