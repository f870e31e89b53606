from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, NotFound, OwnerSuperseded, TooLarge
from shoal.kinds.label import state as notes
from shoal.kinds.label.state import NOTES, Note
from shoal.node.collection.entries import rows_of
from shoal.node.handler import Target
from shoal.node.transaction import Transaction
from shoal.node.verification.verify import verify
from shoal.protocol import requests
from shoal.protocol.requests import Annotate, Claim, ReadLabels, Save, Unlabel
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound, garbage, swept, wiped


async def asked(bench: Bench, request: Any, key: str | None = None) -> Any:
    return await bench.node.session().call(request, key=key)


async def noted(bench: Bench, label: str, *notes: Note) -> None:
    await asked(bench, Annotate("crew", "a", label, list(notes)))


async def read(bench: Bench, **options: Any) -> requests.Labels:
    page = await asked(bench, ReadLabels("crew", "a", **options))
    assert isinstance(page, requests.Labels)
    return page


async def test_a_checkpoint_is_found_by_its_label(bench: Bench) -> None:
    thread = bench.space.thread("a")
    saved = await thread.save({"step": 1}, label="before-deploy")
    await thread.save({"step": 2})
    loaded = await bench.space.thread("a").load(label="before-deploy")
    assert (loaded.id, loaded.state) == (saved.id, {"step": 1})
    with pytest.raises(NotFound, match="'nowhere'"):
        await thread.load(label="nowhere")


async def test_a_label_goes_over_to_the_checkpoint_that_is_saved_under_it_next(bench: Bench) -> None:
    thread = bench.space.thread("a")
    for step in range(3):
        last = await thread.save({"step": step}, label="l")
    assert [found async for found in thread.labels()] == [("l", last.id)]
    assert await thread.unlabel("l", "never-there") == 1
    assert [found async for found in thread.labels()] == []


async def test_labels_are_read_in_pages_with_what_they_name(bench: Bench) -> None:
    thread = bench.space.thread("a")
    for step in range(5):
        await thread.save({"step": step}, label=f"x/{step}")
    await noted(bench, "x/4", Note(b"n", b"v"))
    page = await read(bench, prefix="x/", reverse=True, limit=2, notes=True, channels=True)
    assert page.more
    assert [item.label for item in page.items] == ["x/4", "x/3"]
    assert [item.notes for item in page.items] == [[Note(b"n", b"v")], []]
    assert [item.checkpoint.channels for item in page.items] == [{"step": b"\x04"}, {"step": b"\x03"}]
    rest = await read(bench, prefix="x/", reverse=True, after="x/3")
    assert [item.label for item in rest.items] == ["x/2", "x/1", "x/0"]
    assert not rest.more
    assert not rest.items[0].checkpoint.channels
    assert [item.label for item in (await read(bench, label="x/1")).items] == ["x/1"]
    assert (await read(bench, label="none")).items == []


async def test_the_newest_label_is_found_in_few_reads_whatever_the_history(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    thread = bench.space.thread("a")
    for steps in (10, 200):
        for step in range(steps):
            await thread.save({"step": step}, label=f"x/{steps:04}/{step:04}")
        reads = 0
        get, scan = bench.storage.get, bench.storage.scan

        def counted_get(key: bytes) -> bytes | None:
            nonlocal reads
            reads += 1
            return get(key)  # noqa: B023

        def counted_scan(*args: Any, **options: Any) -> Any:
            nonlocal reads
            for row in scan(*args, **options):  # noqa: B023
                reads += 1
                yield row

        with monkeypatch.context() as patched:
            patched.setattr(bench.storage, "get", counted_get)
            patched.setattr(bench.storage, "scan", counted_scan)
            page = await read(bench, prefix="x/", reverse=True, limit=1, notes=True)
        assert page.items[0].label == f"x/{steps:04}/{steps - 1:04}"
        counts.append(reads)
    assert counts[0] == counts[1] > 0


async def test_notes_may_come_before_what_they_are_beside(bench: Bench) -> None:
    await noted(bench, "l", Note(b"a", b"1", True), Note(b"b", b"1"))
    await noted(bench, "l", Note(b"a", b"2", True), Note(b"b", b"2"))
    assert (await read(bench, notes=True)).items == []
    await bench.space.thread("a").save({}, label="l")
    assert [(n.name, n.value) for n in (await read(bench, notes=True)).items[0].notes] == [(b"a", b"1"), (b"b", b"2")]


async def test_releasing_a_label_drops_its_notes(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({}, label="l")
    await noted(bench, "l", Note(b"a", b"1"))
    await asked(bench, Unlabel("crew", "a", ["l"]))
    await thread.save({}, label="l")
    assert (await read(bench, notes=True)).items[0].notes == []
    await noted(bench, "l", Note(b"a", b"2"))
    assert [note.value for note in (await read(bench, notes=True)).items[0].notes] == [b"2"]


async def test_only_the_latest_owner_writes_and_who_names_none_is_free(bench: Bench) -> None:
    first = (await asked(bench, Claim("crew", "a"))).owner
    await asked(bench, Save("crew", "a", {}, label="l", owner=first))
    second = (await asked(bench, Claim("crew", "a"))).owner
    for stale in (
        Save("crew", "a", {}, label="l", owner=first),
        Annotate("crew", "a", "l", [Note(b"n", b"v")], owner=first),
        Unlabel("crew", "a", ["l"], owner=first),
    ):
        with pytest.raises(OwnerSuperseded) as refused:
            await asked(bench, stale)
        assert refused.value.written == "no"
        assert refused.value.is_stale_write_owner_error
    await asked(bench, Save("crew", "a", {}, owner=second))
    await asked(bench, Save("crew", "a", {}))


async def test_a_claim_that_is_sent_again_is_the_same_claim(bench: Bench) -> None:
    first = await asked(bench, Claim("crew", "a"), key="k")
    assert await asked(bench, Claim("crew", "a"), key="k") == first
    await asked(bench, Save("crew", "a", {}, owner=first.owner))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Annotate("crew", "a", "", [Note(b"n", b"v")]), InvalidName),
        (Annotate("crew", "a", "l", []), InvalidInput),
        (Annotate("crew", "a", "l", [Note(b"n" * 65, b"v")]), TooLarge),
        (Annotate("crew", "a\x00", "l", [Note(b"n", b"v")]), InvalidName),
        (Annotate("crew", "a", "l", [Note(b"n", bytes(2000))]), TooLarge),
        (Unlabel("crew", "a", ["ok", "\x00"]), InvalidName),
        (Unlabel("crew", "a", ["l"] * 11), TooLarge),
        (Save("crew", "a", {}, label="\x1b"), InvalidName),
        (Claim("crew", ""), InvalidName),
    ],
)
async def test_bad_requests_are_refused_and_write_nothing(open_bench: Opener, request_: Any, error: type[Exception]) -> None:
    bench = open_bench(request_bytes_max=1000, note_name_bytes_max=64, batch_writes_max=10)
    with pytest.raises(error):
        await asked(bench, request_)
    assert [name async for name in bench.space.threads()] == []


async def test_a_store_with_labels_notes_and_owners_verifies(bench: Bench) -> None:
    thread = bench.space.thread("a")
    for step in range(3):
        await thread.save({"step": step}, label=f"l{step % 2}")
        await noted(bench, f"l{step % 2}", Note(b"n", b"v", True))
    await asked(bench, Unlabel("crew", "a", ["l0"]))
    await asked(bench, Claim("crew", "a"))
    report = verify(bench.storage, config=Config())
    assert report.problems == []
    assert report.operations == 8


# ── notes that were dropped ───────────────────────────────────────────────────


def noted_rows(storage: MemoryStorage) -> list[bytes]:
    """The rows of notes, without the thread's mark."""
    rows = rows_of(Transaction(storage), Target(Kind.THREAD, "crew", "a"), 0)
    return [row for row, _ in rows.scan(NOTES) if row != NOTES]


async def write_and_drop(session: Any, label: str, count: int = 3) -> None:
    for number in range(count):
        await session.call(Annotate("crew", "a", label, [Note(b"n%d" % number, b"secret")]))
    await session.call(Unlabel("crew", "a", [label]))


@pytest.mark.answers("notes-that-were-dropped-with-their-label-stay")
async def test_notes_that_were_dropped_leave_no_rows(bench: Bench) -> None:
    await write_and_drop(bench.node.session(), "l", 600)
    await noted(bench, "kept", Note(b"n", b"v"))
    await swept(bench.storage)
    assert len(noted_rows(bench.storage)) == 1
    assert not any(b"secret" in value for _, value in bench.storage.scan(b"", None))
    check_sound(bench.storage)
    await noted(bench, "l", Note(b"new", b"v"))
    await bench.space.thread("a").save({"step": 1}, label="l")
    assert (await read(bench, label="l", notes=True)).items[0].notes == [Note(b"new", b"v")]
    check_sound(bench.storage)


async def test_a_crash_before_the_sweep_leaves_it_to_the_next_opening(open_bench: Opener) -> None:
    bench = open_bench()
    await write_and_drop(bench.node.session(), "l")
    left = bench.storage.left_by_crash(0)
    assert garbage(left) == 1
    again = open_bench(left, seed=2)
    await swept(again.storage)
    assert noted_rows(left) == []
    check_sound(left)


@pytest.mark.answers("notes-that-were-dropped-with-their-label-stay")
async def test_nodes_that_drop_at_once_end_with_the_same_rows() -> None:
    async with Fleet() as fleet:
        sessions = {name: member.node.session() for name, member in fleet.members.items()}
        await sessions["a"].call(Annotate("crew", "a", "l", [Note(b"first", b"1")]))
        await fleet.converged()
        await fleet.isolate("a")
        for name in "ab":
            await sessions[name].call(Annotate("crew", "a", "l", [Note(name.encode(), b"2")]))
            await sessions[name].call(Unlabel("crew", "a", ["l"]))
        await sessions["c"].call(Annotate("crew", "a", "l", [Note(b"c", b"3")]))
        fleet.link_all("a")
        await fleet.converged()
        await swept(*(member.storage for member in fleet.members.values()))
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        assert len(noted_rows(fleet["a"].storage)) <= 1  # That of c, if b had not heard of it.
        for name in "abc":
            check_sound(fleet[name].storage)


@pytest.mark.answers("notes-that-were-dropped-with-their-label-stay")
async def test_notes_stay_while_an_owner_may_lack_them_and_a_wiped_one_gets_what_is_left() -> None:
    async with Fleet() as fleet:
        session = fleet["a"].node.session()
        await fleet.isolate("c")
        await write_and_drop(session, "l")
        await session.call(Annotate("crew", "a", "kept", [Note(b"n", b"v")]))
        await asyncio.sleep(0.1)
        assert len(noted_rows(fleet["a"].storage)) == 5  # Three notes and the vector, and one that is kept.
        fleet.link_all("c")
        await fleet.converged()
        await swept(*(member.storage for member in fleet.members.values()))
        await wiped(fleet, "c")
        assert fleet.rows("a") == fleet.rows("c")
        assert len(noted_rows(fleet["c"].storage)) == 1
        check_sound(fleet["c"].storage)


async def test_notes_that_are_missing_although_nothing_was_dropped_are_reported(bench: Bench) -> None:
    await noted(bench, "l", Note(b"n", b"v"))
    await noted(bench, "gone", Note(b"n", b"v"))
    await asked(bench, Unlabel("crew", "a", ["gone"]))
    await swept(bench.storage)
    storage = bench.storage.left_by_crash(None)
    key = next(key for key, value in storage.scan(keys.OBJECT, b"P") if value.endswith(notes.pack([Note(b"n", b"v")])))
    storage.write({key: None})
    report = verify(storage, config=Config())
    assert not report.sound
    assert "missing" in report.problems[0]
