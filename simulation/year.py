"""A year of steady load, in virtual time: what does a cluster keep that it no longer needs?

Laws:
- What the agents keep is the same every day: each object that grows is trimmed, pruned, taken, finished or deleted.
- Each node restarts every day. Every month one loses its disk, and is refilled by the others; then its operator has the
  lost directory forgotten.
- No directory is set back, so no node is told that its own was: it would forget its votes.
- A day lasts `day_s` virtual seconds, and all the spans of the configuration that are hours or days are shorter by as much.
- What grows is compared between the end of the first week and the end of the last. So spans that are a week by default are
  three days here: in the first week, what they keep has come and gone. Origins are retired one by one, so that their number
  does not depend on the day. A document is compacted after 10 updates instead of 512, so that it is done in a year; the size
  from which it waits for more updates is as many times larger.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from shoal.client.connection import StoreConnection
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.errors import NotFound, ShoalError
from shoal.kinds.document.serving.opening import DOCUMENT_BYTES_PER_UPDATE
from shoal.node.incarnation import set_back_by
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.testing.machines import VirtualLoop
from simulation.plan import Plan
from simulation.world.client import Client
from simulation.world.cluster import SimulatedCluster
from simulation.world.host import SimulatedNode
from simulation.world.trace import Trace

NODES = ("n1", "n2", "n3")
WEEK, MONTH = 7, 30  # Days.
GROWTH_MAX = 1.2
"""So many times what there was after the first week is allowed at the end."""

_DAY = 24 * 3600.0
_AGENTS = 4
_PAUSE_S = 0.5  # Between two writes of an agent, on average.
_LIVE = 3  # Objects of each kind, for each agent.
_FILLS = 2  # Each agent begins with so many writes for each of them.
_KEPT = 5  # Checkpoints, events.
_COMPACTED_AT = 10  # Updates; documents are compacted more often, but not because they are larger.
_FEW = 50  # Fewer of anything come and go.
_NOISE = {"ms of CPU to start": 1.0}
_TABLES = {
    "operations in the log": keys.LOG,
    "keys of requests": keys.KEY,
    "origins": keys.VECTOR,
    "rows of objects": keys.OBJECT,
    "rows to be collected": keys.GARBAGE,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What the largest of the nodes has."""

    day: int
    counts: dict[str, int]
    bytes: int
    memory: int  # Objects of Python, of the whole simulation.
    start_s: float  # CPU time of a start, the median of those since the sample before.
    writes: int
    refused: Counter[str]

    def figures(self) -> dict[str, float]:
        """All that must not grow, by name."""
        return {
            **self.counts,
            "bytes on disk": self.bytes,
            "objects in memory": self.memory,
            "ms of CPU to start": round(self.start_s * 1000, 2),
        }


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Each figure at the end ÷ after the first week."""
    first, last = samples[0].figures(), samples[-1].figures()
    return {name: last[name] / max(first[name], _NOISE.get(name, _FEW)) for name in first}


@dataclass(slots=True)
class _Done:
    writes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    starts: list[float] = field(default_factory=list)
    lost: set[bytes] = field(default_factory=set)  # Directories that are not forgotten yet.


async def year(days: int, *, day_s: float, seed: int, every: int, told: Callable[[Sample], None]) -> list[Sample]:
    """Let a cluster run for so many days. A sample is taken after the first week, and then `every` so many days."""
    plan = Plan(seed=seed, nodes=len(NODES), settings=_settings(day_s), duration_s=days * day_s)
    done, samples = _Done(), []
    loop = asyncio.get_running_loop()
    async with SimulatedCluster(plan, trace=Trace(loop.time)) as cluster, _working(cluster, plan, done):
        for name, host in cluster.hosts.items():
            host.disk.watchers.append(_Witness(name, cluster.problems))
        for day in range(days):
            for nth, host in enumerate(cluster.hosts.values()):
                await asyncio.sleep(max(0.0, (day + (nth + 0.5) / len(NODES)) * day_s - loop.time()))
                is_lost = day % MONTH == MONTH - 1 and day // MONTH % len(NODES) == nth
                if is_lost:
                    done.lost.add(host.peer.identity().node)
                await _restart(host, done, is_lost=is_lost)
            await asyncio.sleep(max(0.0, (day + 1) * day_s - loop.time()))
            assert not cluster.problems, f"day {day + 1}: {cluster.problems[0]}"
            await _forget(cluster, done)
            if isinstance(loop, VirtualLoop):
                loop.grant_turns()
            if day + 1 == WEEK or (day + 1 > WEEK and (day + 1 - WEEK) % every == 0) or day + 1 == days:
                sample = await _sample(cluster, day + 1, done)
                samples.append(sample)
                told(sample)
    assert not cluster.problems, cluster.problems[0]
    return samples


class _Witness:
    """Looks at the writes of one disk."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self._name, self._problems = name, problems

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        if told_by := set_back_by(rows):
            self._problems.append(f"{told_by} told {self._name} that its directory was set back, and it was not")

    def mounted(self, storage: Storage, /) -> None: ...

    def replaced(self) -> None: ...

    def synced(self) -> None: ...


def _settings(day_s: float) -> dict[str, int | float | str]:
    def span(seconds: float) -> float:
        return round(seconds * day_s / _DAY, 3)

    return {
        "log_keep_s": span(3600.0),
        "key_window_s": max(1, round(span(_DAY))),
        "forget_after_s": span(3 * _DAY),
        "erase_within_s": span(_DAY),
        "item_expiry_grace_s": span(3600.0),
        "document_history_s": span(3 * _DAY),
        "inbox_taken_s": max(1, round(span(3 * _DAY))),
        "scrub_interval_s": span(3600.0),
        "quorum_register_found_s": 1.0,
        "mark_interval_s": 5.0,
        "snapshot_operations_min": 4,
        "retire_origins_min": 1,
        "adds_folded_min": 4,
        "document_compact_updates": _COMPACTED_AT,
        "document_bytes_per_update": DOCUMENT_BYTES_PER_UPDATE * Config().document_compact_updates // _COMPACTED_AT,
    }


# ── the machines ──────────────────────────────────────────────────────────────


async def _restart(host: SimulatedNode, done: _Done, *, is_lost: bool) -> None:
    if is_lost:
        host.kill()
        host.disk.wipe()
    else:
        await host.stop()
    await host.gone()
    began_s = time.process_time()
    host.start()
    if not is_lost:
        done.starts.append(time.process_time() - began_s)


async def _forget(cluster: SimulatedCluster, done: _Done) -> None:
    """Have the members forget the directories that were lost. If that is not possible now, the operator tries tomorrow."""
    for directory in sorted(done.lost):
        for host in cluster.hosts.values():
            with suppress(ShoalError):
                await host.peer.memberships.changes.change("forget", leaves=directory.hex())
                done.lost.discard(directory)
                break


async def _sample(cluster: SimulatedCluster, day: int, done: _Done) -> Sample:
    counts: Counter[str] = Counter()
    largest = 0
    for host in cluster.hosts.values():
        disk = host.disk.copy()
        for name, table in _TABLES.items():
            counts[name] = max(counts[name], sum(1 for _ in disk.scan(table, successor(table))))
        largest = max(largest, sum(len(key) + len(value) for key, value in disk.scan(b"", None)))
    gc.collect()
    starts = sorted(done.starts)
    sample = Sample(
        day, dict(counts), largest, len(gc.get_objects()), starts[len(starts) // 2], done.writes, Counter(done.refused)
    )
    done.starts.clear()
    return sample


# ── the agents ────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _working(cluster: SimulatedCluster, plan: Plan, done: _Done) -> AsyncIterator[None]:
    agents = [asyncio.ensure_future(_agent(cluster, plan, nth, done)) for nth in range(_AGENTS)]
    try:
        yield
    finally:
        for agent in agents:
            agent.cancel()
        for ended in await asyncio.gather(*agents, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def _agent(cluster: SimulatedCluster, plan: Plan, nth: int, done: _Done) -> None:
    random = plan.random_for(f"agent/{nth}")
    names = list(NODES[nth % len(NODES) :] + NODES[: nth % len(NODES)])
    client = Client(cluster, names, name=f"agent-{nth}", random=random)
    store = Store(StoreConnection(client.session, client.config, "local", random.randbytes), close=client.session.close)
    space = store.space(f"crew-{nth}")
    first = [work for work in _WORK for _ in range(_FILLS * _LIVE)]
    random.shuffle(first)
    while True:
        await asyncio.sleep(random.expovariate(1 / _PAUSE_S))
        work = first.pop() if first else random.choice(_WORK)
        try:
            await work(space, random)
            done.writes += 1
        except ShoalError as error:
            done.refused[error.code] += 1


async def _checkpoints(space: Space, random: Random) -> None:
    thread = space.thread(_name(random))
    with suppress(NotFound):
        await thread.load()
    saved = await thread.save({"messages": [random.random() for _ in range(3)], "step": random.randrange(100)})
    if saved.parents and random.random() < 0.2:
        await thread.rollback(saved.parents[0])
    await thread.prune(keep_last=_KEPT)


async def _run(space: Space, random: Random) -> None:
    """An agent that does something, and is done."""
    thread = space.thread(f"run-{_name(random)}")
    await thread.save({"n": random.random()})
    await thread.step("call", call=_effect)
    await thread.journal.append({"n": 1})
    await thread.delete()


async def _effect() -> int:
    return 7


async def _events(space: Space, random: Random) -> None:
    journal = space.thread(_name(random)).journal
    await journal.append({"at": random.random()})
    await journal.trim(keep=_KEPT)


async def _messages(space: Space, random: Random) -> None:
    inbox = space.thread(_name(random)).inbox
    await inbox.send({"at": random.random()})
    async for message in inbox.pending():
        await inbox.take(message)


async def _counter(space: Space, random: Random) -> None:
    await space.counter(_name(random)).add(random.randrange(10))


async def _register(space: Space, random: Random) -> None:
    await space.register(_name(random)).set(random.random())


async def _set(space: Space, random: Random) -> None:
    shared = space.set(_name(random))
    await shared.add(random.randrange(_LIVE))
    await shared.remove(random.randrange(_LIVE))


async def _map(space: Space, random: Random) -> None:
    shared = space.map(_name(random))
    await shared.set(_name(random), random.random())
    await shared.add("count")
    await shared.remove(_name(random))


async def _items(space: Space, random: Random) -> None:
    await space.items.put(("memory", _name(random)), _name(random), {"n": random.random()})
    await space.items.delete(("memory", _name(random)), _name(random))


async def _budget(space: Space, random: Random) -> None:
    budget = space.budget(_name(random))
    await budget.grant(2)
    await budget.spend(1)


async def _document(space: Space, random: Random) -> None:
    async with await space.document(_name(random)) as document:
        text = document.text("body")
        text += "word "
        if len(text) > 100:
            del text[0:50]


async def _deleted(space: Space, random: Random) -> None:
    """Objects that live for a short time, under names that come again."""
    shared = space.set(f"short-{_name(random)}")
    await shared.add(1)
    with suppress(ShoalError):
        await shared.delete()


def _name(random: Random) -> str:
    return f"o{random.randrange(_LIVE)}"


_WORK: tuple[Callable[[Space, Random], Awaitable[None]], ...] = (
    _checkpoints,
    _run,
    _events,
    _messages,
    _counter,
    _register,
    _set,
    _map,
    _items,
    _budget,
    _document,
    _deleted,
)
