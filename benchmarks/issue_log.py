"""A log of how agents changed shared issues, replayed by as many agents at several nodes.

Each record is what one agent changed, relative to the state after its first parent; a record of two parents is what
came of joining them. The issues are items. A record goes on where its first parent left off, in the same namespace,
or, if another record does, in a copy of its own, as somebody who works apart has. Every agent reads what it changes
from its own node, and waits for its parents by their bookmarks alone.

The real logs are no part of the project: they lie in `../shared/data` beside it, or where `SHOAL_BENCH_DATA` says.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import uvloop

import shoal
from benchmarks.figures import Effort, Figure, Section, Target
from benchmarks.trajectories import VARIABLE
from shoal.client.store import Space, Store
from shoal.demo.nodes import cluster
from shoal.kinds.items.handle.items import Items

NAMES = ("beads_issue_log", "beads_issue_log_merges")
SPACE = "issues"

_DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"
_PIECE = 500  # Writes of one batch; a record of no more is there as a whole, or not at all.

Issue = dict[str, Any]
State = dict[str, Issue]


class Record(NamedTuple):
    seq: int
    parents: tuple[int, ...]
    agent: int
    ops: list[dict[str, Any]]
    digest: str | None  # SHA-256 of the state after it, if it is recorded.


class Replayed(NamedTuple):
    records: int
    writes: int
    digests: int  # Recorded states that were compared, on each node.
    lines: int


class Opened(Protocol):
    """Opens a store on a node, by the node's number."""

    def __call__(self, node: int, /) -> AbstractAsyncContextManager[Store]: ...


_METHOD = (
    "Three `shoal serve` processes on this machine, each with a RocksDB directory of its own, and one client process in which "
    "the log's agents, a third at each node, carry out their records, parents first and with their bookmarks. Every recorded "
    "state is compared on each node by its SHA-256, and so are all lines of work at the end. Without the real logs, one that "
    "was made up."
)


def run(effort: Effort) -> Section:
    figures: list[Figure] = []
    real = {name: read(source) for name in NAMES if (source := path(name)) is not None}
    for name, records in (real or {"made up": made_up(1, records=300)}).items():
        taken = records if effort.repeats > 2 else records[: len(records) // 10]
        wanted = sum(record.digest is not None for record in taken)
        began = perf_counter()
        found = uvloop.run(_replayed(taken))
        figures += [
            Figure(f"{name}: {len(taken)} records, states reproduced on all nodes", "", (found.digests,), Target("=", wanted)),
            Figure(f"{name}: writes of issues", "", (found.writes,)),
            Figure(f"{name}: replayed and compared in", "s", (perf_counter() - began,)),
        ]
    return Section("A real log of shared issues", _METHOD, figures)


async def _replayed(records: Sequence[Record]) -> Replayed:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        async with cluster(Path(directory), size=3, name="issue-log", temporary=True) as nodes:
            return await replay(lambda node: shoal.connect(nodes[node].url), records)


# ── logs ──────────────────────────────────────────────────────────────────────


def path(name: str) -> Path | None:
    """Where a log is; None if it is not there."""
    found = Path(os.environ.get(VARIABLE, _DEFAULT)) / "state" / f"{name}.jsonl.gz"
    return found if found.is_file() else None


def read(source: Path, limit: int | None = None) -> list[Record]:
    """The first records of a log, parents first."""
    with gzip.open(source, "rt") as lines:
        next(lines)  # The header.
        return [_record(json.loads(line)) for line in islice(lines, limit)]


def _record(told: dict[str, Any]) -> Record:
    parents = () if told.get("snapshot") else tuple(told["parents"])
    return Record(told["seq"], parents, told["agent"], told["ops"], told.get("state_sha256"))


def made_up(seed: int, *, records: int = 60, agents: int = 6) -> list[Record]:
    """A log of the same form, with agents that work apart and join what they did."""
    random = Random(seed)
    states: list[State] = [{}]
    found = [Record(0, (), 0, [], digest({}))]
    for seq in range(1, records):
        parents = [max(0, seq - 1 - random.randrange(4) * (random.random() < 0.3))]
        if seq > 2 and random.random() < 0.2:
            parents += [other] if (other := random.randrange(seq)) != parents[0] else []
        before = states[parents[0]]
        state = {id: dict(issue) for id, issue in before.items()}
        for other in parents[1:]:
            state |= states[other]
        for _ in range(random.randrange(6)):
            id = f"is-{random.randrange(15)}"
            match random.randrange(4):
                case 0:
                    state.pop(id, None)
                case 1:
                    state.setdefault(id, {}).pop("note", None)
                case _:
                    state[id] = {**state.get(id, {}), "n": random.randrange(9), random.choice(["note", "é", "by"]): seq}
        states.append(state)
        recorded = digest(state) if random.random() < 0.4 else None
        found.append(Record(seq, tuple(parents), random.randrange(agents), _difference(before, state), recorded))
    return found


def _difference(before: State, after: State) -> list[dict[str, Any]]:
    ops: list[dict[str, Any]] = [{"op": "delete", "id": id} for id in before.keys() - after.keys()]
    for id, issue in after.items():
        if id not in before:
            ops.append({"op": "create", "id": id, "value": issue})
        elif issue != before[id]:
            fields = {name: value for name, value in issue.items() if before[id].get(name) != value}
            ops.append({"op": "set", "id": id, "fields": fields, "unset": sorted(before[id].keys() - issue.keys())})
    return ops


def digest(state: Mapping[str, Issue]) -> str:
    """As the log's header defines it."""
    return sha256(json.dumps(state, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


# ── the replay ────────────────────────────────────────────────────────────────


async def replay(open_store: Opened, records: Sequence[Record], *, nodes: int = 3) -> Replayed:
    """Let the log's agents, spread over the nodes, carry it out; compare every recorded state on every node.

    Raises:
        AssertionError: a state is another than was recorded, or nodes end with different ones.
    """
    async with AsyncExitStack() as stack:
        agents = sorted({record.agent for record in records})
        stores = {agent: await stack.enter_async_context(open_store(place % nodes)) for place, agent in enumerate(agents)}
        readers = [await stack.enter_async_context(open_store(node)) for node in range(nodes)]
        replaying = _Replay(records, stores, readers)
        async with asyncio.TaskGroup() as group:
            for clone in replaying.clones:
                group.create_task(replaying.copy(clone))
            for agent in agents:
                group.create_task(replaying.work(agent))
        await replaying.compare_ends()
        return Replayed(len(records), replaying.writes, replaying.digests, len(set(replaying.lines.values())))


class _Replay:
    def __init__(self, records: Sequence[Record], stores: Mapping[int, Store], readers: Sequence[Store]) -> None:
        self._records = {record.seq: record for record in records}
        self._stores = stores
        self._readers = readers
        self._bookmarks: dict[int, str] = {}
        self._done = {seq: asyncio.Event() for seq in self._records}
        self._copied = {seq: asyncio.Event() for seq in self._records}
        self.lines, self.clones = _lines(records)
        self._copies: dict[int, list[int]] = defaultdict(list)  # Of what a record left: those who begin with one.
        for clone in self.clones:
            self._copies[self._records[clone].parents[0]].append(clone)
        self.writes = 0
        self.digests = 0

    async def work(self, agent: int) -> None:
        store = self._stores[agent]
        for record in self._records.values():
            if record.agent == agent:
                await self._wait(record)
                for parent in record.parents:
                    store.observe(self._bookmarks[parent])
                if record.seq in self.clones:
                    store.observe(self._bookmarks[-record.seq])
                await self._carry_out(store.space(SPACE), record)
                if record.digest is not None:
                    await self._compare(record, store.bookmark)
                self._bookmarks[record.seq] = store.bookmark
                self._done[record.seq].set()

    async def copy(self, clone: int) -> None:
        """Give a record that works apart the state that it begins with."""
        record = self._records[clone]
        (parent, *_), store = record.parents, self._stores[record.agent]
        await self._done[parent].wait()
        store.observe(self._bookmarks[parent])
        space = store.space(SPACE)
        await self._write(space, self.lines[clone], await _state(space.items, self.lines[parent]))
        self._bookmarks[-clone] = store.bookmark
        self._copied[clone].set()

    async def _wait(self, record: Record) -> None:
        for parent in record.parents:
            await self._done[parent].wait()
        if record.seq in self.clones:
            await self._copied[record.seq].wait()
        elif record.parents:
            for clone in self._copies[record.parents[0]]:  # Whoever works apart begins with what was there before.
                await self._copied[clone].wait()

    async def _carry_out(self, space: Space, record: Record) -> None:
        label = self.lines[record.seq]
        ids = list(dict.fromkeys(op["id"] for op in record.ops))
        found = await space.items.get_many([((label,), id) for id in ids])
        changed: dict[str, Issue | None] = {
            id: None if item is None else item.value for id, item in zip(ids, found, strict=True)
        }
        for op in record.ops:
            id = op["id"]
            if op["op"] == "delete":
                changed[id] = None
            elif op["op"] == "create":
                changed[id] = op["value"]
            else:
                gone = op.get("unset", ())
                before = changed[id] or {}
                changed[id] = {name: value for name, value in {**before, **op["fields"]}.items() if name not in gone}
        await self._write(space, label, changed)

    async def _write(self, space: Space, label: str, changed: Mapping[str, Issue | None]) -> None:
        waiting = iter(changed.items())
        while piece := list(islice(waiting, _PIECE)):
            async with space.batch() as batch:
                for id, issue in piece:
                    if issue is None:
                        batch.items.delete((label,), id)
                    else:
                        batch.items.put((label,), id, issue)
            self.writes += len(piece)

    async def _compare(self, record: Record, bookmark: str) -> None:
        self.digests += 1
        for node, reader in enumerate(self._readers):
            reader.observe(bookmark)
            state = await _state(reader.space(SPACE).items, self.lines[record.seq])
            assert digest(state) == record.digest, f"after record {record.seq} node {node} shows another state"

    async def compare_ends(self) -> None:
        for reader in self._readers:
            for bookmark in self._bookmarks.values():
                reader.observe(bookmark)
        for label in sorted(set(self.lines.values())):
            digests = [digest(await _state(reader.space(SPACE).items, label)) for reader in self._readers]
            assert len(set(digests)) == 1, f"the nodes end with different issues in {label}"


def _lines(records: Iterable[Record]) -> tuple[dict[int, str], set[int]]:
    """The label where each record's state is; and the records that begin with a copy of their first parent's."""
    lines: dict[int, str] = {}
    clones: set[int] = set()
    continued: set[int] = set()
    for record in records:
        if record.parents and record.parents[0] not in continued:
            continued.add(record.parents[0])
            lines[record.seq] = lines[record.parents[0]]
            continue
        lines[record.seq] = f"line-{record.seq}"
        if record.parents:
            clones.add(record.seq)
    return lines, clones


async def _state(items: Items, label: str) -> State:
    return {item.key: item.value async for item in items.scan((label,))}
