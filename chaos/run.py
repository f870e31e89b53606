"""A trial from its first process to its evidence.

Law: at every strike's end all nodes are up, and the agents are paused until the
nodes say that they hold the same; the next strike comes after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from chaos.agents import Agent, Crowd, at_work
from chaos.cluster import Cluster, Node, NodeFailed, running
from chaos.evidence import Evidence, Options, Recovery
from chaos.faults import FAULTS, Fault, Strike
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.verify import verify
from shoal.storage.rocks import RocksStorage
from shoal.testing.checkers import DotLedger, InvariantViolated, check_vectors
from shoal.testing.found import Found, find
from shoal.testing.history import History
from shoal.transport.session import RemoteSession

EQUAL_S_MAX = 30.0
"""For the nodes to become equal, once nobody writes; and for a node to catch up."""

_LULL_S = (0.3, 1.5)  # Between two strikes, at least and at most.

Say = Callable[[str], None]


async def run(options: Options, directory: Path, *, say: Say, now_s: Callable[[], float]) -> tuple[History, Evidence]:
    """Run a trial below `directory`, which exists."""
    trial = _Trial(options, say=say, now_s=now_s)
    try:
        async with running(directory, nodes=options.nodes, now_s=now_s) as cluster:
            say(f"{options.nodes} nodes are up: {', '.join(node.url for node in cluster.nodes)}")
            await trial.storm(cluster)
            await trial.survey(cluster)
        await trial.inspect(cluster)
    except NodeFailed as failure:
        trial.evidence.trouble.append(str(failure))
    return trial.history, trial.evidence


class _Trial:
    def __init__(self, options: Options, *, say: Say, now_s: Callable[[], float]) -> None:
        self.history = History()
        self.evidence = Evidence(options=options)
        self._options = options
        self._random = Random(options.seed)
        self._say = say
        self._now_s = now_s

    # ── strikes, under load ───────────────────────────────────────────────────

    async def storm(self, cluster: Cluster) -> None:
        """Agents at work, and one strike after the other."""
        began_s = self._now_s()
        async with at_work(
            cluster,
            agents=self._options.agents,
            rate=self._options.rate,
            durability=self._options.durability,
            note=self.history.note,
            random=self._random,
        ) as crowd:
            faults = [FAULTS[name]() for name in self._options.faults]
            while not self._is_over(began_s):
                await asyncio.sleep(self._random.uniform(*_LULL_S))
                await self._strike(self._random.choice(faults), cluster, crowd)
            await crowd.finish()
            self.evidence.seconds = self._now_s() - began_s
            self._note_returns(crowd.agents)

    def _is_over(self, began_s: float) -> bool:
        if self._options.strikes is not None:
            return len(self.evidence.recoveries) >= self._options.strikes
        return self._now_s() - began_s >= self._options.minutes * 60

    async def _strike(self, fault: Fault, cluster: Cluster, crowd: Crowd) -> None:
        strike = await fault.strike(cluster, self._random)
        # At once: what they have seen may be more than the node that is back has yet.
        crowd.return_to(strike.node)
        healed_s = await cluster.caught_up(EQUAL_S_MAX)
        async with crowd.paused():
            equal_s = await cluster.equal(EQUAL_S_MAX)
        self.evidence.recoveries.append(Recovery(strike, [], healed_s, equal_s))
        self._tell(strike, healed_s, equal_s)

    def _tell(self, strike: Strike, healed_s: float | None, equal_s: float | None) -> None:
        nth, of = len(self.evidence.recoveries), self._options.strikes
        healed = "did not catch up" if healed_s is None else f"caught up in {healed_s:.2f} s"
        equal = "the nodes are NOT equal" if equal_s is None else "all nodes equal"
        self._say(
            f"{strike.fault} {nth}{f'/{of}' if of else ''}: {strike.node} back after {strike.over_s - strike.began_s:.2f} s, "
            f"{healed}, {equal}; {len(self.history.acknowledged):,} writes acknowledged"
        )

    def _note_returns(self, agents: list[Agent]) -> None:
        for recovery in self.evidence.recoveries:
            began_s, node = recovery.strike.began_s, recovery.strike.node
            struck = (agent.timeline for agent in agents if agent.timeline.node_at(began_s) == node)
            recovery.back_s = [timeline.idle_s(began_s) for timeline in struck]

    # ── afterwards ────────────────────────────────────────────────────────────

    async def survey(self, cluster: Cluster) -> None:
        """Wait until the nodes are equal, read everything from each, and stop them."""
        self.evidence.equal_s = await cluster.equal(EQUAL_S_MAX)
        self._say("reading every object from every node")
        founds = await asyncio.gather(*(_find(node) for node in cluster.nodes))
        self.evidence.founds = {node.name: found for node, found in zip(cluster.nodes, founds, strict=True)}
        await asyncio.gather(*(cluster.stop(node) for node in cluster.nodes))

    async def inspect(self, cluster: Cluster) -> None:
        """Check the directories of nodes that have stopped."""
        self._say("verifying every directory")
        dots = DotLedger()  # One for all: a dot names one payload, wherever it is.
        for node in cluster.nodes:
            self.evidence.damage[node.name] = await asyncio.to_thread(_inspect, node, dots)


async def _find(node: Node) -> Found:
    """What a client that knows only this node is shown."""
    environment = system_environment()
    session = RemoteSession(node.url, config=Config(), now_ms=environment.now_ms, entropy=environment.entropy)
    try:
        return await find(session)
    finally:
        await session.close()
        environment.close()


def _inspect(node: Node, dots: DotLedger) -> list[str]:
    """What `shoal verify` finds wrong, and what the checkers of rows do."""
    config = Config()
    storage = RocksStorage.open(node.directory, config=config, now_ms=0)
    try:
        problems = list(verify(storage, config=config).problems)
        dots.check(storage)
        check_vectors(History(), storage)
    except InvariantViolated as violated:
        return [*problems, str(violated)]
    finally:
        storage.close()
    return problems
