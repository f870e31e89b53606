"""The origins of past openings are retired, and nothing that a client can see changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shoal import values
from shoal.client.store import Store
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import HORIZON, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import BookmarkLost, HistoryCompacted, JournalTrimmed, SessionBehind
from shoal.kinds.document.state import compaction
from shoal.kinds.document.state.compaction import Coverage
from shoal.kinds.journal.state import trimming
from shoal.node.handler import Target
from shoal.node.verification.verify import verify
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.position import Position
from shoal.protocol.requests import AddEntry, Append, Change, Reset, Watch
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

Write = Callable[[Store], Any]
MIN = 4


def rows(storage: MemoryStorage, prefix: bytes) -> list[bytes]:
    return [key for key, _ in storage.scan(prefix, successor(prefix))]


def same(storage: MemoryStorage) -> MemoryStorage:
    """The same directory, which was stopped."""
    return storage.crash(None)


def named(storage: MemoryStorage) -> int:
    """The origins that vectors name."""
    return len(rows(storage, keys.VECTOR))


def retired(storage: MemoryStorage) -> list[Origin]:
    return [Origin(key[3:]) for key in rows(storage, keys.RETIRED) if key[3:19] != HORIZON]


async def settle(bench: Bench) -> None:
    """Wait until the retiring of this opening is done."""
    task = bench.node._database.retiring._task
    if task is not None:
        await asyncio.wait_for(asyncio.shield(task), 30)


async def reopened(storage: MemoryStorage, open_bench: Opener, seed: int, **settings: Any) -> Bench:
    return open_bench(same(storage), seed=seed, **{"retire_origins_min": MIN, **settings})


async def opened(open_bench: Opener, times: int, write: Callable[[Bench, int], Any], **settings: Any) -> Bench:
    """A store after so many openings with one write each."""
    storage = MemoryStorage()
    for number in range(times):
        bench = await reopened(storage, open_bench, number + 1, **settings)
        await write(bench, number)
        await settle(bench)
        await bench.node.stop()
        storage = bench.storage = same(bench.storage)
    return bench


async def append(bench: Bench, number: int) -> None:
    await bench.space.thread("t").journal.append({"n": number})


@pytest.mark.answers("vectors-grow-with-openings")
async def test_rows_do_not_grow_with_openings(open_bench: Opener) -> None:
    few = await opened(open_bench, 10, append)
    many = await opened(open_bench, 60, append)
    for table in (keys.VECTOR, keys.meta("over/")):
        assert len(rows(many.storage, table)) <= len(rows(few.storage, table)) + MIN
    assert named(many.storage) <= MIN + 1
    assert len(retired(many.storage)) >= 60 - MIN - 1


@pytest.mark.answers("vectors-grow-with-openings")
async def test_a_program_that_opens_its_store_for_a_moment_only_retires_too(open_bench: Opener) -> None:
    storage = MemoryStorage()
    for number in range(40):
        bench = await reopened(storage, open_bench, number + 1)
        await append(bench, number)
        await bench.node.stop()
        storage = same(bench.storage)
    assert named(storage) <= MIN + 1
    assert len(rows(storage, keys.meta("over/"))) <= MIN + 1


async def test_a_store_with_retired_origins_is_sound(open_bench: Opener) -> None:
    bench = await opened(open_bench, 30, append)
    assert verify(bench.storage, config=bench.config).problems == []


@pytest.mark.answers("shoal-verify-reports-the-answer-of-a-key")
async def test_a_store_with_answers_of_forgotten_origins_is_sound(open_bench: Opener) -> None:
    async def write(bench: Bench, number: int) -> None:
        await bench.node.session().call(Append("crew", "t", values.encode(number)), key=f"my-own-{number}")

    bench = await opened(open_bench, 30, write, retired_origins_max=4)
    assert len(retired(bench.storage)) <= 4 + MIN
    assert len(rows(bench.storage, keys.KEY)) == 30
    assert verify(bench.storage, config=bench.config).problems == []


@pytest.mark.answers("retirement-is-seen")
async def test_a_bookmark_of_a_retired_origin_is_held(open_bench: Opener) -> None:
    bookmarks: list[str] = []

    async def write(bench: Bench, number: int) -> None:
        await append(bench, number)
        bookmarks.append(bench.store.bookmark)

    bench = await opened(open_bench, 20, write)
    again = await reopened(bench.storage, open_bench, 99)
    assert len(retired(again.storage)) > 10
    for bookmark in bookmarks:
        again.store.observe(bookmark)
        assert len([event async for event in again.space.thread("t").journal.read()]) == 20


@pytest.mark.answers("bookmark-is-older-than-what-is-remembered")
async def test_a_bookmark_of_a_forgotten_origin_is_lost_and_the_error_says_so(open_bench: Opener) -> None:
    bookmarks: list[str] = []

    async def write(bench: Bench, number: int) -> None:
        await append(bench, number)
        bookmarks.append(bench.store.bookmark)

    bench = await opened(open_bench, 20, write, retired_origins_max=4)
    assert len(retired(bench.storage)) <= 4 + MIN
    again = await reopened(bench.storage, open_bench, 99)
    again.store.observe(bookmarks[0])
    with pytest.raises(BookmarkLost, match="retired"):
        await again.space.thread("t").load()


@pytest.mark.answers("bookmark-is-older-than-what-is-remembered")
@pytest.mark.parametrize("days", [6, 8])
async def test_a_client_that_touches_a_thread_again_after_a_week_goes_on(open_bench: Opener, days: int) -> None:
    """What it has seen is retired and forgotten by then: nobody can say any more that it is there."""
    bookmarks: list[str] = []

    async def write(bench: Bench, number: int) -> None:
        await append(bench, number)
        bookmarks.append(bench.store.bookmark)

    bench = await opened(open_bench, 20, write, retired_origins_max=4)
    again = await reopened(bench.storage, open_bench, 99)
    again.store.observe(bookmarks[0])
    again.simulated.now_ms += days * 24 * 3600 * 1000
    if days < 7:
        with pytest.raises(BookmarkLost):
            await again.space.thread("t").journal.append({"n": 20})
        return
    await again.space.thread("t").journal.append({"n": 20})
    assert len([event async for event in again.space.thread("t").journal.read()]) == 21
    assert len(Bookmark.parse(again.store.bookmark)) == 1


@pytest.mark.answers("bookmark-is-older-than-what-is-remembered")
async def test_a_node_that_is_cut_off_shows_a_client_of_a_week_ago_no_older_state() -> None:
    """It cannot tell what was forgotten from what it never had: only all owners together can."""
    time_s = 0.0
    bookmark = Bookmark(lambda: time_s)
    bookmark.note(partition_of("crew", "c"), VersionVector({Origin(b"g" * 16): 1}))
    async with Fleet(session_wait_s=0.1) as fleet:
        counter = fleet["c"].store(bookmark).space("crew").counter("c")
        with pytest.raises(BookmarkLost):
            await counter.value()
        time_s = 7 * 24 * 3600.0
        await fleet.isolate("c")
        with pytest.raises(SessionBehind):
            await counter.add(1)
        fleet.link_all("c")
        await counter.add(1)
        assert await counter.value() == 1


@pytest.mark.answers("retirement-is-seen")
@pytest.mark.parametrize("kept", [4096, 3])
async def test_a_journal_cursor_of_any_opening_continues_where_it_was(open_bench: Opener, kept: int) -> None:
    cursors: list[bytes] = []

    async def write(bench: Bench, number: int) -> None:
        await append(bench, number)
        events = [event async for event in bench.space.thread("t").journal.read()]
        assert [event.event["n"] for event in events] == list(range(number + 1))
        cursors.append(events[-1].cursor)

    bench = await opened(open_bench, 30, write, retired_origins_max=kept)
    again = await reopened(bench.storage, open_bench, 99, retired_origins_max=kept)
    for number, cursor in enumerate(cursors):
        rest = [event.event["n"] async for event in again.space.thread("t").journal.read(after=cursor)]
        assert rest == list(range(number + 1, 30)), number


@pytest.mark.answers("retirement-is-seen")
@pytest.mark.parametrize("kept", [4096, 3])
async def test_a_reader_that_goes_on_in_each_opening_gets_each_event_once(open_bench: Opener, kept: int) -> None:
    got: list[int] = []
    cursor = b""

    async def write(bench: Bench, number: int) -> None:
        nonlocal cursor
        await append(bench, number)
        async for event in bench.space.thread("t").journal.read(after=cursor):
            got.append(event.event["n"])
            cursor = event.cursor

    await opened(open_bench, 40, write, retired_origins_max=kept)
    assert got == list(range(40))
    assert len(cursor) < 2000


@pytest.mark.answers("retirement-is-seen")
@pytest.mark.parametrize("kept", [4096, 3])
async def test_a_value_of_a_retired_origin_is_replaced(open_bench: Opener, kept: int) -> None:
    async def write(bench: Bench, number: int) -> None:
        if number == 0:
            await bench.space.register("r").set("first")
        await append_to_r(bench, number)

    async def append_to_r(bench: Bench, number: int) -> None:
        await bench.space.thread("{r}t").journal.append({"n": number})
        await bench.space.register("{r}r").set(number) if number in (0, 25) else None

    bench = await opened(open_bench, 26, write, retired_origins_max=kept)
    again = await reopened(bench.storage, open_bench, 99)
    assert await again.space.register("{r}r").get() == 25


@pytest.mark.answers("retirement-is-seen")
async def test_a_watch_that_is_resumed_misses_no_change_of_a_retired_origin(open_bench: Opener) -> None:
    """It gets each change, or is told to start again from the present state."""
    positions: list[Position] = []

    async def write(bench: Bench, number: int) -> None:
        position = Position() if not positions else positions[-1].copy()
        async with bench.node.session().subscribe(Watch("crew", after=position.pack())) as pushes:
            await append(bench, number)
            told = await asyncio.wait_for(anext(pushes), 30)
            if isinstance(told, Reset):
                position = Position.unpack(told.position)
            else:
                assert isinstance(told, Change)
                position.note(told)
        positions.append(position)

    bench = await opened(open_bench, 20, write)
    again = await reopened(bench.storage, open_bench, 99)
    table = again.node._database.partitions
    for number, position in enumerate(positions):
        lacking = 19 - number
        async with again.node.session().subscribe(Watch("crew", after=position.pack())) as pushes:
            told = [await asyncio.wait_for(anext(pushes), 30)] if lacking else []
            if told and isinstance(told[0], Reset):
                continue
            told += [await asyncio.wait_for(anext(pushes), 30) for _ in range(lacking - len(told))]
            assert len([push for push in told if isinstance(push, Change)]) == lacking, number
    assert table.load(partition_of("crew", "t")).retired.horizon


@pytest.mark.answers("origin-is-retired-that-an-owner-lacks")
async def test_a_copy_retires_nothing_of_its_original(open_bench: Opener) -> None:
    """The original may still run. What the copy itself opens later is retired."""
    bench = await opened(open_bench, MIN - 1, append)
    copy = bench.storage.left_by_crash(None)
    for number in range(MIN + 2):
        again = await reopened(copy, open_bench, 100 + number) if number else open_bench(copy, seed=99, retire_origins_min=MIN)
        await append(again, number)
        await settle(again)
        await again.node.stop()
        copy = same(again.storage)
    originals = {Origin(key[3:]) for key in rows(bench.storage, keys.VECTOR)}
    assert retired(copy)
    assert not originals & set(retired(copy))


@pytest.mark.answers("origin-is-retired-that-an-owner-lacks")
async def test_a_member_that_is_opened_alone_retires_nothing(open_bench: Opener) -> None:
    """Its peers may lack what it holds."""
    storage = (await opened(open_bench, 1, append)).storage
    storage.write({keys.meta("member"): b"\x01"})
    for number in range(MIN + 2):
        again = await reopened(storage, open_bench, 100 + number)
        await append(again, number)
        await settle(again)
        await again.node.stop()
        storage = same(again.storage)
    assert retired(storage) == []
    assert named(storage) == MIN + 3


async def test_rights_of_past_openings_move_to_the_live_one(open_bench: Opener) -> None:
    async def write(bench: Bench, number: int) -> None:
        budget = bench.space.budget("b")
        if number == 0:
            await budget.grant(100)
        await budget.spend(1)

    bench = await opened(open_bench, 12, write)
    assert len(rows(bench.storage, keys.meta("over/"))) <= MIN
    again = await reopened(bench.storage, open_bench, 99)
    await again.space.budget("b").spend(88)


@pytest.mark.answers("inbox-does-not-forget")
async def test_an_inbox_forgets_messages_of_retired_origins(open_bench: Opener) -> None:
    async def message(bench: Bench, number: int) -> None:
        bench.simulated.now_ms += 3_600_000 if number >= 30 else 0
        inbox = bench.space.thread("t").inbox
        await inbox.send({"n": number})
        async for found in inbox.pending():
            await inbox.take(found)

    bench = await opened(open_bench, 40, message, inbox_taken_s=600)
    assert len(retired(bench.storage)) > 10
    again = await reopened(bench.storage, open_bench, 99, inbox_taken_s=600)
    assert [found.value["n"] async for found in again.space.thread("t").inbox.taken()] == [*range(30, 40)]


@pytest.mark.answers("adds-to-keys-of-maps-stay-for-ever-once")
async def test_adds_of_retired_origins_are_merged(open_bench: Opener) -> None:
    async def add(bench: Bench, number: int) -> None:
        await bench.space.map("m").add("k")

    few, many = await opened(open_bench, 20, add), await opened(open_bench, 60, add)
    assert len(retired(many.storage)) > 40
    assert len(rows(many.storage, keys.OBJECT)) <= len(rows(few.storage, keys.OBJECT)) + MIN
    again = await reopened(many.storage, open_bench, 99)
    assert await again.space.map("m").get("k") == 60


@pytest.mark.answers("adds-to-keys-of-maps-stay-for-ever-once")
async def test_adds_of_forgotten_origins_are_merged(open_bench: Opener) -> None:
    async def add(bench: Bench, number: int) -> None:
        await bench.space.map("m").add(f"k{number % 3}")

    bench = await opened(open_bench, 60, add, retired_origins_max=4)
    assert len(retired(bench.storage)) <= 4 + MIN
    assert len(rows(bench.storage, keys.OBJECT)) <= 1 + 3 + 3 * MIN
    again = await reopened(bench.storage, open_bench, 99)
    assert [await again.space.map("m").get(f"k{number}") for number in range(3)] == [20, 20, 20]


@pytest.mark.answers("adds-to-keys-of-maps-stay-for-ever-once")
async def test_adds_under_users_keys_are_merged_once_their_origin_was_silent_for_the_window(open_bench: Opener) -> None:
    """However short each opening is."""

    async def add(bench: Bench, number: int) -> None:
        bench.simulated.now_ms += 200_000 * number
        await bench.node.session().call(AddEntry("crew", "m", "k", 1), key=f"my-own-{number}")

    bench = await opened(open_bench, 40, add, key_window_s=100)
    assert len(retired(bench.storage)) >= 40 - 2 * MIN
    assert len(rows(bench.storage, keys.OBJECT)) <= 1 + 1 + 2 * MIN
    again = await reopened(bench.storage, open_bench, 99)
    assert await again.space.map("m").get("k") == 40


@pytest.mark.answers("two-directories-fold-one-merged-add")
async def test_a_copy_leaves_what_its_original_merged_as_it_is(open_bench: Opener) -> None:
    async def add(bench: Bench, number: int) -> None:
        await bench.space.map("m").add("k")

    bench = await opened(open_bench, 2 * MIN + 2, add)

    def merged(storage: MemoryStorage) -> list[tuple[bytes, bytes]]:
        found = storage.scan(keys.OBJECT, successor(keys.OBJECT))
        return [(key, value) for key, value in found if bench.node._incarnation.node in value]

    before, copy = merged(bench.storage), bench.storage.left_by_crash(None)
    for number in range(2 * MIN + 2):
        again = await reopened(copy, open_bench, 100 + number) if number else open_bench(copy, seed=99, retire_origins_min=MIN)
        await add(again, number)
        await settle(again)
        await again.node.stop()
        copy = same(again.storage)
    assert before
    assert merged(copy) == before
    assert await (await reopened(copy, open_bench, 199)).space.map("m").get("k") == 2 * (2 * MIN + 2)


async def append_and_trim(bench: Bench, number: int) -> None:
    journal = bench.space.thread("t").journal
    await journal.append({"n": number})
    await journal.trim(keep=5)


def ends_of_trims(bench: Bench) -> list[bytes]:
    rows = bench.node._database.document(Target(Kind.THREAD, "crew", "t")).rows
    return trimming.ends(rows)[1]


@pytest.mark.answers("trimmed-journal-keeps-a-row-for-each-opening")
async def test_ends_of_trims_do_not_grow_with_openings(open_bench: Opener) -> None:
    bench = await opened(open_bench, 60, append_and_trim, retired_origins_max=4)
    again = await reopened(bench.storage, open_bench, 99, retired_origins_max=4)
    assert len(ends_of_trims(again)) <= 4 + 2 * MIN + 1
    assert verify(again.storage, config=again.config).problems == []


@pytest.mark.answers("reader-misses-trimmed-events-whose-origin-is-forgotten")
@pytest.mark.parametrize(("away", "kept", "told"), [(1, 4, False), (8, 4, True), (8, 4096, True), (40, 4, True)])
async def test_a_reader_that_was_away_is_told_if_events_were_trimmed(
    open_bench: Opener, away: int, kept: int, told: bool
) -> None:
    """It is told nothing if it got them all, although the origins of some are forgotten."""
    cursors: list[bytes] = []

    async def write(bench: Bench, number: int) -> None:
        await append_and_trim(bench, number)
        cursors.append([event async for event in bench.space.thread("t").journal.read()][-1].cursor)

    bench = await opened(open_bench, 60, write, retired_origins_max=kept)
    again = await reopened(bench.storage, open_bench, 99, retired_origins_max=kept)
    journal = again.space.thread("t").journal
    if told:
        with pytest.raises(JournalTrimmed):
            await anext(aiter(journal.read(after=cursors[-1 - away])))
    else:
        assert [event.event["n"] async for event in journal.read(after=cursors[-1 - away])] == [59]


async def edit_and_compact(bench: Bench, number: int) -> None:
    async with await bench.space.document("d") as document:
        document.text("t").insert(0, "x")
        await document.compact()


def coverages(bench: Bench) -> list[Coverage]:
    rows = bench.node._database.document(Target(Kind.DOCUMENT, "crew", "d")).rows
    return [each.coverage for each in compaction.standing(rows)]


@pytest.mark.answers("compaction-names-every-opening")
async def test_names_in_compactions_do_not_grow_with_openings(open_bench: Opener) -> None:
    bench = await opened(open_bench, 60, edit_and_compact, retired_origins_max=4)
    again = await reopened(bench.storage, open_bench, 99, retired_origins_max=4)
    [coverage] = coverages(again)
    assert len(coverage.ends) <= 4 + 2 * MIN + 1
    assert coverage.floor.hlc
    assert verify(again.storage, config=again.config).problems == []
    async with await again.space.document("d") as document:
        assert str(document.text("t")) == "x" * 60


@pytest.mark.answers("compaction-names-every-opening")
@pytest.mark.parametrize(("away", "kept", "told"), [(1, 4, False), (8, 4, True), (40, 4, True), (40, 4096, True)])
async def test_a_moment_before_a_compaction_is_told_although_its_origins_are_forgotten(
    open_bench: Opener, away: int, kept: int, told: bool
) -> None:
    moments: list[str] = []

    async def write(bench: Bench, number: int) -> None:
        await edit_and_compact(bench, number)
        async with await bench.space.document("d") as document:
            moments.append(await document.snapshot())

    bench = await opened(open_bench, 60, write, retired_origins_max=kept)
    again = await reopened(bench.storage, open_bench, 99, retired_origins_max=kept)
    async with await again.space.document("d") as document:
        if told:
            with pytest.raises(HistoryCompacted):
                await document.at(moments[-away])
        else:
            assert await document.at(moments[-away]) == {"t": "x" * 60}


async def test_few_openings_are_not_retired(open_bench: Opener) -> None:
    bench = await opened(open_bench, MIN - 1, append)
    again = await reopened(bench.storage, open_bench, 99)
    await append(again, 99)
    assert again.node._database.retiring._task is None
    assert retired(again.storage) == []
