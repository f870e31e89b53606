"""`verify`: a sound store is said to be sound, and each kind of damage is found where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.crdt import deletion
from shoal.crdt.rows import POSITION_BYTES
from shoal.errors import KeyReused, NotFound
from shoal.kinds.document.state import document
from shoal.kinds.document.state.live import EMPTY
from shoal.node.verification.replay import Folded, differing
from shoal.node.verification.report import PROBLEMS_LISTED_MAX, ObjectPlace, Report
from shoal.node.verification.verify import verify
from shoal.protocol.requests import NO_HEAD, Compact, Patch
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.environment import SimulatedEnvironment
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import swept
from tests.support.examples import examples
from tests.support.pacing import LOOK_S

CONFIG = Config(document_snapshot_updates=2)
LARGE = [Random(n).randbytes(350).hex() for n in range(60)]  # Several chunks, and a tail.


async def fill(bench: Bench, turn: int) -> None:
    """Something of everything."""
    space = bench.space
    thread, rival = space.thread("agent"), space.thread("agent")
    await thread.save({"messages": LARGE[: 20 + 10 * turn], "turn": turn}, overwrite=True, key=f"save-{turn}")
    await rival.load()
    await thread.save({"messages": LARGE[: 25 + 10 * turn], "turn": turn})
    await rival.save({"fork": turn}, on_conflict="fork")
    await thread.save({"side": 1}, branch="what-if", overwrite=True)
    await thread.journal.append({"turn": turn}, key="once" if turn == 0 else f"turn-{turn}")
    await thread.journal.append("plain")
    await thread.journal.replay(lambda count, _: count + 1, initial=0, name="count", every=1)
    await thread.journal.consumer("c").ack([event async for event in thread.journal.read()][-1])
    await thread.inbox.send({"turn": turn}, key=f"m-{turn}")
    await thread.inbox.send("another")
    await thread.inbox.take(await anext(thread.inbox.pending()))
    await thread.worklist("w").add([f"{turn}", "again"])
    await thread.worklist("w").done(f"{turn}", result=turn)
    await thread.worklist("w").forget(before=datetime(2200, 1, 1, tzinfo=UTC))
    await space.counter("tokens").add(7, key=f"k{turn}")
    await space.thread("agent").put_file("page", b"page %d" % turn)
    await space.counter("tokens").add(-2)
    one, other = space.register("goal"), space.register("goal")
    await one.get()
    await other.get()
    await one.set({"turn": turn})
    await other.set("concurrent")
    async with await space.document("plan") as document:
        for edit in range(3):
            document.map("tasks")[f"{turn}-{edit}"] = {"done": False}
            document.text("notes").insert(0, "é")
            await document.flush()
    async with await space.document("essay", initial={"by": "a"}) as essay:
        for edit in range(2):
            essay.text("body").insert(0, f"{turn}-{edit} ")
            await essay.flush()
        await essay.compact()
    await swept(bench.storage)
    await space.items.put(("memory", "u"), "likes", {"turn": turn}, ttl=timedelta(days=1))
    await space.items.put(("memory", "u"), f"gone-{turn}", 1)
    await space.items.delete(("memory", "u"), f"gone-{turn}")
    await space.items.index(("memory",), "turn")
    async with asyncio.timeout(20):
        while not (await space.items.indexes(("memory",)))["turn"]:
            await asyncio.sleep(LOOK_S)
    async with space.batch() as batch:
        batch.thread("{t}/a").save({"turn": turn}, overwrite=True)
        batch.counter("{t}/n").add(1)


async def filled() -> MemoryStorage:
    """Three openings: one that crashed and lost the end, one that was killed, one that stopped cleanly."""
    bench = Bench(MemoryStorage(), SimulatedEnvironment(1), CONFIG)
    await fill(bench, 0)
    await bench.space.counter("tokens").add(1000, durability="memory")
    bench = bench.crashed(keep=0)
    await fill(bench, 1)
    bench = bench.crashed(keep=None)
    await fill(bench, 2)
    left = bench.storage.left_by_crash(None)
    await bench.node.stop()
    return left


@cache
def everything() -> dict[bytes, bytes]:
    return dict(asyncio.run(filled()).scan(b"", None))


@pytest.fixture
def rows() -> dict[bytes, bytes]:
    return everything()


def report_of(rows: dict[bytes, bytes]) -> Report:
    return verify(MemoryStorage(rows), config=CONFIG)


def test_a_store_with_everything_and_two_crashes_is_sound(rows: dict[bytes, bytes]) -> None:
    report = report_of(rows)
    assert report.problems == []
    assert report.sound
    assert (report.objects, report.checkpoints) == (8, 15)
    assert min(report.operations, report.chunks, report.partitions) > 4
    assert report.files == 3


def test_an_empty_store_is_sound() -> None:
    assert report_of({}) == Report()


async def test_a_store_that_is_in_use_under_memory_durability_is_sound(open_bench: Opener) -> None:
    bench = open_bench()
    bench.simulated.hold_syncs()
    await bench.space.counter("n").add(1, durability="memory")
    assert verify(bench.storage, config=bench.config).sound
    bench.simulated.release_syncs()


async def test_a_counter_that_adds_up_to_nothing_is_sound(open_bench: Opener) -> None:
    bench = open_bench()
    await bench.space.counter("n").add(5)
    await bench.space.counter("n").add(-5)
    assert [name async for name in bench.space.counters()] == ["n"]
    assert verify(bench.storage, config=bench.config).problems == []


def test_verifying_changes_nothing(rows: dict[bytes, bytes]) -> None:
    storage = MemoryStorage(rows)
    verify(storage, config=CONFIG)
    assert dict(storage.scan(b"", None)) == rows


def test_progress_is_told_of_each_partition(rows: dict[bytes, bytes]) -> None:
    told: list[int] = []
    verify(MemoryStorage(rows), config=CONFIG, progress=told.append)
    assert told == list(range(1024))


def test_problems_are_counted_past_those_that_are_listed(rows: dict[bytes, bytes]) -> None:
    names = [f"t{n:04}" for n in range(PROBLEMS_LISTED_MAX + 5)]
    extra = {keys.catalog("s", Kind.THREAD, name): b"" for name in names}
    extra |= {keys.listed(partition_of("s", name), Kind.THREAD, "s", name): b"" for name in names}
    report = report_of(rows | extra)
    assert (report.problem_count, len(report.problems)) == (PROBLEMS_LISTED_MAX + 5, PROBLEMS_LISTED_MAX)


# ── planted damage ────────────────────────────────────────────────────────────

Damage = Callable[[dict[bytes, bytes]], None]


def table(rows: dict[bytes, bytes], prefix: bytes) -> list[bytes]:
    return sorted(key for key in rows if key.startswith(prefix))


def object_rows(rows: dict[bytes, bytes], kind: Kind, row: bytes, name: str | None = None) -> list[bytes]:
    """The keys of an object's rows that begin with `row`."""
    found = []
    for key in table(rows, keys.OBJECT):
        _, its_kind, _, its_name, its_row = keys.split_object(key)
        if its_kind is kind and its_row.startswith(row) and name in (None, its_name):
            found.append(key)
    return found


def flipped(value: bytes, at: int = -1) -> bytes:
    damaged = bytearray(value)
    damaged[at] ^= 1
    return bytes(damaged)


def longest_log(rows: dict[bytes, bytes]) -> list[bytes]:
    """The keys of the origin's log that has the most entries in one partition."""
    logs: dict[bytes, list[bytes]] = {}
    for key in table(rows, keys.LOG):
        logs.setdefault(key[:-8], []).append(key)
    return max(logs.values(), key=len)


def lose(find: Callable[[dict[bytes, bytes]], bytes]) -> Damage:
    def damage(rows: dict[bytes, bytes]) -> None:
        del rows[find(rows)]

    return damage


def flip(find: Callable[[dict[bytes, bytes]], bytes], at: int = -1) -> Damage:
    def damage(rows: dict[bytes, bytes]) -> None:
        key = find(rows)
        rows[key] = flipped(rows[key], at)

    return damage


def put(make: Callable[[dict[bytes, bytes]], tuple[bytes, bytes]]) -> Damage:
    return lambda rows: rows.update([make(rows)])


def first(kind: Kind, row: bytes) -> Callable[[dict[bytes, bytes]], bytes]:
    return lambda rows: object_rows(rows, kind, row)[0]


def snapshot(rows: dict[bytes, bytes]) -> bytes:
    return table(rows, keys.SNAPSHOT)[0]


def tip_ahead(rows: dict[bytes, bytes]) -> None:
    key = table(rows, keys.VECTOR)[0]
    tip = rows[key]
    rows[key] = (int.from_bytes(tip[:8], "big") + 1).to_bytes(8, "big") + tip[8:]


def empty_snapshot(rows: dict[bytes, bytes]) -> None:
    rows[snapshot(rows)] = document.Snapshot(rows[snapshot(rows)][:POSITION_BYTES], EMPTY).pack()


def snapshot_that_claims_more(rows: dict[bytes, bytes]) -> None:
    """It says that it covers the last update, which came after it."""
    last = object_rows(rows, Kind.DOCUMENT, b"U")[-1]
    rows[snapshot(rows)] = keys.split_object(last)[4][1:] + rows[snapshot(rows)][POSITION_BYTES:]


def index_row(start: bytes) -> Callable[[dict[bytes, bytes]], bytes]:
    return lambda rows: next(key for key in table(rows, keys.INDEX) if keys.split_object(key)[4].startswith(start))


T, D, C, R, M = Kind.THREAD, Kind.DOCUMENT, Kind.COUNTER, Kind.REGISTER, Kind.ITEMS

DAMAGE: dict[str, tuple[Damage, str]] = {
    "a log entry in the middle is missing": (lose(lambda rows: longest_log(rows)[1]), "has a hole before sequence 3"),
    "the first log entry is missing": (lose(lambda rows: longest_log(rows)[0]), "has a hole before sequence 2"),
    "the last log entry is missing": (lose(lambda rows: longest_log(rows)[-1]), "does not end where its vector says"),
    "a log entry was altered": (flip(lambda rows: longest_log(rows)[1]), "does not end where its vector says"),
    "a log entry is no operation": (flip(lambda rows: longest_log(rows)[1], 32), "this is not an operation"),
    "a log entry's chain hash was altered": (flip(lambda rows: longest_log(rows)[1], 0), "breaks its origin's hash chain"),
    "a vector runs ahead of its log": (tip_ahead, "does not end where its vector says"),
    "a vector's chain hash was altered": (flip(lambda rows: table(rows, keys.VECTOR)[0]), "does not end where its vector says"),
    "a vector is missing": (lose(lambda rows: table(rows, keys.VECTOR)[0]), "does not end where its vector says"),
    "a chunk was altered": (flip(first(T, b"D")), "is damaged"),
    "a chunk is missing": (lose(first(T, b"D")), "is missing"),
    "a chunk of a file was altered": (flip(first(T, b"Vc")), "of a file is damaged"),
    "a chunk of a file is missing": (lose(first(T, b"Vc")), "misses 1 chunks"),
    "the list of a file's chunks was altered": (flip(first(T, b"Vm")), "the list of chunks of file"),
    "a checkpoint is missing": (lose(first(T, b"C")), "is in the log but not in its thread"),
    "a checkpoint's time was altered": (flip(first(T, b"C"), 39), "rows differ from what its operations make"),
    "a checkpoint's record was altered": (flip(first(T, b"C")), "checkpoint"),
    "a checkpoint's record cannot be decoded": (flip(first(T, b"C"), 40), "a checkpoint cannot be decoded"),
    "a branch names other heads": (flip(first(T, b"B")), "rows differ from what its operations make"),
    "an event was altered": (flip(first(T, b"E")), "is missing or damaged"),
    "an event is missing": (lose(first(T, b"E")), "is in the log and not in its journal"),
    "an event's key is forgotten": (lose(first(T, b"Q")), "thread 'agent'"),
    "an update was altered": (flip(first(D, b"U")), "is missing or damaged"),
    "an update is missing": (lose(first(D, b"U")), "is missing or damaged"),
    "a root's kind was altered": (flip(first(D, b"R"), 3), "root cannot be read"),
    "a merged update was altered": (flip(first(D, b"M")), "is missing or damaged"),
    "a merged update is missing": (lose(first(D, b"M")), "is missing"),
    "what a compaction covers was altered": (flip(first(D, b"C")), "document 'essay'"),
    "what a compaction covers is forgotten": (lose(first(D, b"C")), "document 'essay'"),
    "a counter's value was altered": (flip(first(C, b"V")), "rows differ from what its operations make"),
    "a counter's key is forgotten": (lose(first(C, b"K")), "rows differ from what its operations make"),
    "a register's value was altered": (flip(first(R, b"S")), "rows differ from what its operations make"),
    "a sibling is missing": (lose(first(R, b"S")), "rows differ from what its operations make"),
    "an item was altered": (flip(first(M, b"I")), "rows differ from what its operations make"),
    "an item's expiry is forgotten": (lose(first(M, b"T")), "rows differ from what its operations make"),
    "an item is not in an index": (lose(index_row(b"V")), "1 items are not in its index of 'turn'"),
    "an index has a row of no item": (
        put(lambda rows: (index_row(b"V")(rows) + b"x", b"")),
        "1 rows of its index of 'turn' are of no item",
    ),
    "an index is forgotten": (lose(index_row(b"S")), "1 index rows belong to no index"),
    "an index cannot be decoded": (flip(index_row(b"S"), 0), "its index of 'turn' cannot be decoded"),
    "an index is of no object": (put(lambda _: (keys.INDEX + b"\x00\x01\xffxyz", b"")), "belongs to no object"),
    "an object has a row too many": (
        put(lambda rows: (first(C, b"V")(rows)[:-1] + b"T", b"\x05")),
        "1 rows differ from what its operations make",
    ),
    "an object has rows and no operations": (
        put(lambda _: (keys.object_rows(5, Kind.COUNTER, "s", "n") + b"T" + bytes(16), b"\x05")),
        "counter 'n' of space 's': 1 rows differ",
    ),
    "a row belongs to no object": (put(lambda _: (keys.OBJECT + b"\x00\x01\xffxyz", b"")), "belongs to no object"),
    "a request's key is missing": (lose(lambda rows: table(rows, keys.KEY)[0]), "does not name the operation"),
    "a request's key names another operation": (flip(lambda rows: table(rows, keys.KEY)[0]), "does not name the operation"),
    "a catalog entry is missing": (lose(lambda rows: table(rows, keys.CATALOG)[0]), "exists and is not listed"),
    "the catalog lists what is not there": (
        put(lambda _: (keys.catalog("s", Kind.THREAD, "ghost"), b"")),
        "thread 'ghost' of space 's' is listed and does not exist",
    ),
    "a catalog entry names nothing": (put(lambda _: (keys.CATALOG + b"\x00\x01s\xff", b"")), "names no object"),
    "a snapshot is empty": (empty_snapshot, "document 'plan'"),
    "a snapshot claims more than it holds": (snapshot_that_claims_more, "document 'plan'"),
    "a snapshot cannot be read": (flip(snapshot, len(document.Snapshot(bytes(POSITION_BYTES), b"").pack())), "document 'plan'"),
}


@pytest.mark.answers("snapshot-drops-updates-that-wait", "deleted-memory-stays-in-the-search-index", "damaged-rows")
@pytest.mark.answers("scrub-repairs-by-merging", note="damage on one node is found")
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(rows: dict[bytes, bytes], name: str) -> None:
    damage, said = DAMAGE[name]
    damaged = dict(rows)
    damage(damaged)
    assert damaged != rows
    problems = report_of(damaged).problems
    assert any(said in problem for problem in problems), problems


def test_an_operation_on_an_object_of_no_kind_is_told(rows: dict[bytes, bytes]) -> None:
    named = b"\x95\x01\xa4crew"  # A mutation of a thread.
    key, stored = next((key, stored) for key, stored in rows.items() if key[:1] == keys.LOG and named in stored)
    problems = report_of({**rows, key: stored.replace(named, b"\x95\x00\xa4crew")}).problems
    assert any("breaks its origin's hash chain" in problem for problem in problems), problems


def test_a_snapshot_may_be_missing(rows: dict[bytes, bytes]) -> None:
    assert table(rows, keys.SNAPSHOT)
    assert report_of({key: value for key, value in rows.items() if not key.startswith(keys.SNAPSHOT)}).sound


@pytest.mark.answers("damage-is-detected", "damaged-rows")
@examples(30)
@given(which=st.integers(0, 2**32), at=st.integers(0, 2**32), lost=st.booleans())
def test_any_row_that_is_lost_or_altered_is_found(which: int, at: int, lost: bool) -> None:
    """But for the store's own notes, which nothing else repeats, and how far an index is built."""
    rows = everything()
    told = sorted(key for key in rows if key[:1] not in (keys.META, keys.SNAPSHOT) and key != index_row(b"S")(rows))
    key = told[which % len(told)]
    damaged = dict(rows)
    if lost or not rows[key]:
        del damaged[key]
    else:
        damaged[key] = flipped(rows[key], at % len(rows[key]))
    assert not report_of(damaged).sound, key


# ── folding again gives equal rows, whatever happened ─────────────────────────

NAMES = ("a", "b", "{t}/a", "{t}/b")

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("save", "fork", "load", "branch", "event", "add", "assign", "read", "edit", "patch", "compact", "batch", "crash")
        ),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=25,
)


class Agent:
    """Handles that remember their positions until the next crash."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.space = bench.space
        self.threads = {name: self.space.thread(name) for name in NAMES}
        self.registers = {(name, nth): self.space.register(name) for name in NAMES for nth in range(2)}

    async def act(self, action: str, name: str, number: int) -> None:
        thread, register = self.threads[name], self.registers[name, number % 2]
        match action:
            case "save":
                await thread.save({"m": LARGE[: number * 12], "n": number}, on_conflict="fork")
            case "fork":
                await self.space.thread(name).save({"m": LARGE[number : number * 12]}, parent=NO_HEAD, on_conflict="fork")
            case "load":
                async for checkpoint in thread.history(limit=number or 1):
                    await thread.load(checkpoint.id)
            case "branch":
                await self.space.thread(name).save({"b": number}, branch=f"b{number % 2}", overwrite=True)
            case "event":
                await thread.journal.append(number, key=f"k{number % 3}" if number % 2 else None)
            case "add":
                await self.space.counter(name).add(number - 3, key=f"k{number % 3}" if number % 2 else None)
            case "assign":
                await register.set(number)
            case "read":
                await register.get()
            case "edit":
                async with await self.space.document(name) as document:
                    document.map("m")[str(number)] = number
                    document.text("t").insert(0, "é" * number)
            case "patch":
                packed = b'[{"op": "add", "path": "/m", "value": {"p": %d}}]' % number
                await self.bench.node.session().call(Patch("crew", name, packed))
            case "compact":
                with suppress(NotFound):
                    await self.bench.node.session().call(Compact("crew", name))
            case "batch":
                async with self.space.batch(key=f"batch-{name}-{number}") as batch:
                    batch.thread(f"{{t}}/{number}").save({"n": number}, overwrite=True)
                    batch.thread(f"{{t}}/{number}").journal.append(number, key="once")
                    batch.counter("{t}/n").add(number)
                    batch.register("{t}/r").set(number)


@pytest.mark.answers("state-is-a-fold")
@examples(25)
@given(STEPS)
async def test_folding_any_history_again_gives_equal_rows(steps: list[tuple[str, int, int]]) -> None:
    agent = Agent(Bench(MemoryStorage(), SimulatedEnvironment(7), CONFIG))
    for action, name, number in steps:
        if action == "crash":
            agent = Agent(agent.bench.crashed(keep=number or None))
            continue
        with suppress(KeyReused):
            await agent.act(action, NAMES[name], number)
    await agent.bench.node.stop()
    assert verify(agent.bench.storage.left_by_crash(None), config=CONFIG).problems == []


def test_rows_of_an_ended_generation_are_not_compared() -> None:
    place = ObjectPlace(3, Kind.REGISTER, "crew", "goal")
    folded = Folded({place: {}}, set(), {place: 1}, {})
    ended, current = (deletion.prefix(number) + b"row" for number in (0, 1))
    assert differing(place, {ended: b"x", current: b"y"}, folded) == {current: None}
