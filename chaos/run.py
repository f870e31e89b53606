"""A trial from its first process to its evidence.

Laws:
- At every strike's end all nodes are up, and the agents are paused until the nodes say
  that they hold the same; the next strike comes after that.
- Disks are looked at before anything is read, for reads repair; then each node is read
  while no other runs, so that none of them leans on another.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from random import Random

from msgspec.structs import replace

from chaos import containers, processes
from chaos.agents import Agent, Crowd, at_work
from chaos.cluster import Cluster, Node, NodeFailed
from chaos.composed import FAULTS
from chaos.engine import Skipped
from chaos.evidence import Evidence, Options, Recovery
from chaos.faults import Clock, Fault, Full, Stage, Strike
from chaos.ledger import Deed, hold
from chaos.samples import LOOK_S, Lags
from chaos.workers import Desk
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.kinds.budget.peers import RIGHTS_SPREAD_S
from shoal.node.environment import system_environment
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage
from simulation.judging.checkers import DotLedger, InvariantViolated, check_vectors
from simulation.judging.found import Found, find
from simulation.judging.history import History

EQUAL_S_MAX = 30.0
"""For the nodes to become equal, once nobody writes; and for a node to catch up."""

STILL_S = 4 * RIGHTS_SPREAD_S
"""So long no node writes of its own accord before they are stopped: a look at rights to spend may make another one due."""

SWEPT_S_MAX = 60.0
"""For the nodes to be rid of what was erased, once they are equal."""

ANSWERS = frozenset(("budget-exhausted", "pruned", "step-unresolved"))
"""Errors that are answers: what the worker asked for may not be. They are no trouble that users felt."""

_LULL_S = (0.3, 1.5)  # Between two strikes, at least and at most.
_OBJECTS_TOLD = 5

_OF_THE_NODE = (keys.META, keys.SNAPSHOT, keys.INDEX)
"""Tables that differ between nodes that hold the same operations."""

_OF_ORIGINS = {keys.LOG: "the log", keys.VECTOR: "the vector's entry", keys.BASE: "the log's base", keys.GARBAGE: "garbage"}
_OTHERS = {
    keys.RETIRED: "retired origins",
    keys.KEY: "keys of requests",
    keys.CATALOG: "the catalog",
    keys.STATUS: "the list of threads by status",
    keys.STAGED: "a snapshot that is being installed",
}
"""Tables and what their rows are, for people: of one origin, and of none."""

Say = Callable[[str], None]
Rows = dict[bytes, bytes]  # Key → hash.


async def run(
    options: Options, directory: Path, *, say: Say, now_s: Callable[[], float], program: Sequence[str] | None = None
) -> tuple[History, Evidence]:
    """Run a trial below `directory`, which exists. `program` is what each node runs, where nodes are processes.

    A trial that cannot be run on this machine returns evidence that says why.
    """
    skipped = _impossible(options, directory)
    for name, why in skipped.items():
        say(f"{name}: skipped: {why}")
    options = replace(options, faults=[name for name in options.faults if name not in skipped])
    trial = _Trial(options, say=say, now_s=now_s)
    trial.evidence.skipped = skipped
    if not options.faults:
        trial.evidence.not_run = "no fault that was asked for can be made here: " + "; ".join(
            f"{name}: {why}" for name, why in skipped.items()
        )
        return trial.history, trial.evidence
    try:
        async with _running(options, directory, say=say, now_s=now_s, program=program) as cluster:
            say(f"{options.nodes} nodes are up: {', '.join(node.url for node in cluster.nodes)}")
            await trial.storm(cluster)
            await trial.rest(cluster)
            await trial.inspect(cluster)
            await trial.survey(cluster)
    except Skipped as reason:
        trial.evidence.not_run = str(reason)
    except NodeFailed as failure:
        trial.evidence.trouble.append(str(failure))
    return trial.history, trial.evidence


def _impossible(options: Options, directory: Path) -> dict[str, str]:
    """The faults that cannot be made on this machine, and why."""
    if options.backend == "process" and Full.name in options.faults and (why := processes.no_disks(directory)):
        return {Full.name: why}
    return {}


@asynccontextmanager
async def _running(
    options: Options, directory: Path, *, say: Say, now_s: Callable[[], float], program: Sequence[str] | None
) -> AsyncGenerator[Cluster]:
    if options.backend == "compose":
        async with containers.running(directory, say=say, now_s=now_s) as cluster:
            yield cluster
        return
    program = program or (processes.SKEWED if Clock.name in options.faults else processes.PROGRAM)
    disks = Full.name in options.faults
    async with processes.running(directory, nodes=options.nodes, now_s=now_s, program=program, disks=disks) as cluster:
        yield cluster


class _Trial:
    def __init__(self, options: Options, *, say: Say, now_s: Callable[[], float]) -> None:
        self.history = History()
        self.evidence = Evidence(options=options)
        self._options = options
        self._random = Random(options.seed)
        self._lags = Lags()
        self._say = say
        self._now_s = now_s

    # ── strikes, under load ───────────────────────────────────────────────────

    async def storm(self, cluster: Cluster) -> None:
        """Agents at work, and one strike after the other."""
        began_s = self.evidence.samples.began_s = self._now_s()
        desk = Desk(cluster, self._note_deed)
        stage = Stage(cluster, self._random, desk, frozenset(self._options.faults))
        async with at_work(
            desk,
            agents=self._options.agents,
            rate=self._options.rate,
            workers=self._options.workers,
            durability=self._options.durability,
            note=self.history.note,
            samples=self.evidence.samples,
            random=self._random,
        ) as crowd:
            faults = self._drawn()
            looks = [asyncio.create_task(self._look(cluster, node)) for node in cluster.nodes]
            try:
                while not self._is_over(began_s):
                    await asyncio.sleep(self._random.uniform(*_LULL_S))
                    await self._strike(next(faults), stage, crowd)
                await crowd.finish()
            finally:
                for look in looks:
                    look.cancel()
                await asyncio.gather(*looks, return_exceptions=True)
                self.evidence.seconds = self._now_s() - began_s
                self.evidence.learners = stage.learners
            self._note_returns(crowd.agents)

    async def _look(self, cluster: Cluster, node: Node) -> None:
        """Note again and again how far a node is behind. Each has a look of its own, for one may not answer."""
        while True:
            vector = await cluster.vector(node)
            now_s = self._now_s()
            self.evidence.samples.behind(node.name, self._lags.seen(node.name, vector, now_s=now_s), now_s=now_s)
            await asyncio.sleep(LOOK_S)

    def _note_deed(self, deed: Deed) -> None:
        self.evidence.deeds.append(deed)
        if deed.code and deed.code not in ANSWERS:
            self.evidence.samples.failed(deed.code, now_s=self._now_s())

    def _drawn(self) -> Iterator[Fault]:
        """All faults in an order that is drawn, and again in another: a trial of so many strikes has had each of them."""
        while True:
            for name in self._random.sample(self._options.faults, len(self._options.faults)):
                yield FAULTS[name]()

    def _is_over(self, began_s: float) -> bool:
        if self._options.strikes is not None:
            return len(self.evidence.recoveries) >= self._options.strikes
        return self._now_s() - began_s >= self._options.minutes * 60

    async def _strike(self, fault: Fault, stage: Stage, crowd: Crowd) -> None:
        strike = await fault.strike(stage)
        # At once: what they have seen may be more than the node that is back has yet.
        crowd.return_to(strike.node)
        healed_s = await stage.cluster.caught_up(EQUAL_S_MAX)
        paused_s = self._now_s()
        async with crowd.paused():
            equal_s = await stage.cluster.equal(EQUAL_S_MAX)
        self.evidence.recoveries.append(Recovery(strike, [], healed_s, equal_s, (paused_s, self._now_s())))
        self._tell(strike, healed_s, equal_s)

    def _tell(self, strike: Strike, healed_s: float | None, equal_s: float | None) -> None:
        nth, of = len(self.evidence.recoveries), self._options.strikes
        healed = "did not catch up" if healed_s is None else f"caught up in {healed_s:.2f} s"
        equal = "the nodes are NOT equal" if equal_s is None else "all nodes equal"
        deeds = sum(deed.outcome == "yes" for deed in self.evidence.deeds)
        self._say(
            f"{strike.fault} {nth}{f'/{of}' if of else ''}: {strike.node} back after {strike.over_s - strike.began_s:.2f} s, "
            f"{healed}, {equal}; {len(self.history.acknowledged):,} writes and {deeds:,} deeds acknowledged"
        )

    def _note_returns(self, agents: list[Agent]) -> None:
        for recovery in self.evidence.recoveries:
            began_s, node = recovery.strike.began_s, recovery.strike.node
            struck = (agent.timeline for agent in agents if agent.timeline.node_at(began_s) == node)
            recovery.back_s = [timeline.idle_s(began_s) for timeline in struck]

    # ── afterwards ────────────────────────────────────────────────────────────

    async def rest(self, cluster: Cluster) -> None:
        """Wait until the nodes are equal, have swept what was erased and write nothing more, and stop them."""
        self.evidence.equal_s = await cluster.equal(EQUAL_S_MAX)
        if await cluster.swept(SWEPT_S_MAX) is None:
            self.evidence.unequal.append(f"a node has not swept what was erased within {SWEPT_S_MAX:g} s")
        if await cluster.still(STILL_S, EQUAL_S_MAX) is None:
            self.evidence.unequal.append(f"the nodes still write, or differ, after {EQUAL_S_MAX:g} s without agents")
        await asyncio.gather(*(cluster.stop(node) for node in cluster.nodes))

    async def inspect(self, cluster: Cluster) -> None:
        """Check the directories of nodes that have stopped, and compare them."""
        self._say("verifying and comparing every directory")
        dots = DotLedger()  # One for all: a dot names one payload, wherever it is.
        rows: dict[str, Rows] = {}
        for node in cluster.nodes:
            async with node.disk() as disk:
                self.evidence.damage[node.name], rows[node.name] = await asyncio.to_thread(_inspect, disk, dots)
        first, *others = rows
        for other in others:
            self.evidence.unequal += _differing(first, rows[first], other, rows[other])

    async def survey(self, cluster: Cluster) -> None:
        """Read everything from each node, while the others are down."""
        self._say("reading every object from every node, one alone at a time")
        for node in cluster.nodes:
            await cluster.start(node)
            try:
                self.evidence.founds[node.name] = await _find(cluster, node)
                async with cluster.connect(node.url) as store:
                    self.evidence.holdings[node.name] = await hold(store, self.evidence.deeds)
            except ShoalError as error:
                self.evidence.damage[node.name].append(f"alone, it cannot be read: {error!r}")
            await cluster.stop(node)


async def _find(cluster: Cluster, node: Node) -> Found:
    """What a client that knows only this node is shown."""
    environment = system_environment()
    session = cluster.session(node.url, environment)
    try:
        return await find(session)
    finally:
        await session.close()
        environment.close()


def _inspect(disk: Path, dots: DotLedger) -> tuple[list[str], Rows]:
    """What `shoal verify` finds wrong, and what the checkers of rows do; and what the rows in a directory are."""
    config = Config()
    storage = RocksStorage.open(disk, config=config, now_ms=0)
    rows: Rows = {}
    try:
        rows |= {
            key: blake2b(value, digest_size=16).digest()
            for key, value in storage.scan(b"", None)
            if key[:1] not in _OF_THE_NODE
        }
        problems = list(verify(storage, config=config).problems)
        dots.check(storage)
        check_vectors(History(), storage)
    except InvariantViolated as violated:
        return [*problems, str(violated)], rows
    finally:
        storage.close()
    return problems, rows


def _differing(one: str, ours: Rows, other: str, theirs: Rows) -> list[str]:
    differing = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if not differing:
        return []
    counts = Counter(map(named, differing))
    shown = ", ".join(f"{name} ({count:,} rows)" for name, count in counts.most_common(_OBJECTS_TOLD))
    more = f", and {len(counts) - _OBJECTS_TOLD:,} more" if len(counts) > _OBJECTS_TOLD else ""
    return [f"{len(differing):,} rows of {one} and {other} differ: {shown}{more}"]


def named(key: bytes) -> str:
    """What a row is of, for people: "counter hits in space crew", "the log of origin 3f2a0c11"."""
    table = key[:1]
    if table in (keys.OBJECT, keys.LISTED):
        _, kind, space, name, _ = keys.split_object(key)
        return f"{kind.label} {name} in space {space}"
    if table in _OF_ORIGINS:
        return f"{_OF_ORIGINS[table]} of origin {key[3:7].hex()}"
    return _OTHERS.get(table, "rows of another table")
