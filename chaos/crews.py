"""A crew on trial: machines and nodes are killed, and its agents must be at work elsewhere in time, and do nothing twice.

Laws:
- A strike comes only when all agents are at work, and is over when all of them are at work again, or it is too late.
- What happened is read from the notes that the machines' agents append to (`chaos.crew_machine`), and from the cluster at
  the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from chaos.cluster import Cluster, NodeFailed
from chaos.crew_machine import AGENT, SPACE
from chaos.engine import outliving_nobody
from chaos.processes import running

Blow = Literal["machine", "machine and node"]
BLOWS: tuple[Blow, ...] = ("machine", "machine", "machine and node")
"""A machine is killed, or a machine and the node that it prefers."""

SLACK_S = 2.0
"""Beyond its ttl, until an agent of a killed machine is at work elsewhere."""

_POLL_S = 0.02
_PATIENCE_S = 60.0  # For all agents to be at work.


class Note(msgspec.Struct, frozen=True):
    """What an agent did: an effect outside, or a save that was acknowledged."""

    kind: Literal["effect", "saved"]
    agent: str
    n: int
    machine: str
    fence: int
    at_s: float


class Takeover(msgspec.Struct, frozen=True):
    """An agent of a killed machine: how long it took until it had saved elsewhere; None: too long to wait for."""

    agent: str
    blow: Blow
    took_s: float | None


class Verdict(msgspec.Struct):
    """What came of a trial."""

    ttl_s: float
    takeovers: list[Takeover]
    effects: int
    problems: list[str]

    def lines(self) -> Iterator[str]:
        """For people."""
        took = sorted(each.took_s for each in self.takeovers if each.took_s is not None)
        if took:
            shown = ", ".join(f"p{share} {_quantile(took, share):.2f} s" for share in (50, 90, 99))
            yield f"{len(took):,} agents at work elsewhere: {shown}, most {took[-1]:.2f} s (ttl {self.ttl_s:g} s)"
        yield f"{self.effects:,} effects"
        yield from self.problems
        yield "BROKEN" if self.problems else "no effect was repeated, nothing was lost, and each agent was at work in time"


def judge(notes: Sequence[Note], states: Mapping[str, int], takeovers: Sequence[Takeover], *, ttl_s: float) -> Verdict:
    """What is wrong. `states`: how far each agent is, as the cluster holds it."""
    problems = []
    effects: dict[tuple[str, int], list[Note]] = defaultdict(list)
    saved: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        if note.kind == "effect":
            effects[note.agent, note.n].append(note)
        else:
            saved[note.agent].append(note)
    for (agent, n), times in sorted(effects.items()):
        if len(times) > 1:
            machines = ", ".join(note.machine for note in times)
            problems.append(f"effect {n} of {agent} was repeated: by {machines}")
    for agent, mine in sorted(saved.items()):
        in_order = sorted(mine, key=lambda note: (note.n, note.fence))
        for before, after in pairwise(in_order):
            if before.n == after.n:
                problems.append(f"save {before.n} of {agent} was acknowledged twice: to {before.machine} and {after.machine}")
            if before.fence > after.fence:
                problems.append(f"{before.machine} saved {before.n} of {agent} after {after.machine} had taken it over")
        most = in_order[-1].n
        if states.get(agent, 0) < most:
            problems.append(f"{agent} had saved {most}, and the cluster holds {states.get(agent, 0)}")
        problems += [f"effect {n} of {agent} is missing" for n in range(1, most + 1) if (agent, n) not in effects]
    for each in takeovers:
        if each.took_s is None or each.took_s > ttl_s + SLACK_S:
            took = "did not return to work" if each.took_s is None else f"was at work again only {each.took_s:.2f} s"
            problems.append(f"{each.agent} {took} after a kill ({each.blow})")
    return Verdict(ttl_s, list(takeovers), len(effects), problems)


def _quantile(ordered: Sequence[float], share: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


class Machines:
    """The processes that run the crew, and what their agents have noted."""

    def __init__(self, cluster: Cluster, directory: Path, *, ttl_s: float, agents: int) -> None:
        self.notes: list[Note] = []
        self._cluster = cluster
        self._directory = directory
        self._path = directory / "notes.jsonl"
        self._read = 0
        self._ttl_s = ttl_s
        self._agents = agents
        self._processes: dict[int, Process] = {}
        self._names: dict[int, str] = {}
        self._starts = 0

    async def start(self, place: int) -> None:
        """Start a machine, under a new name: one that was killed has its name until its ttl is over."""
        self._starts += 1
        self._names[place] = name = f"m{place}-{self._starts}"
        arguments = (self._cluster.urls(place), name, str(self._path), str(self._ttl_s), str(self._agents))
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[place] = await asyncio.create_subprocess_exec(
                *outliving_nobody((sys.executable, "-m", "chaos.crew_machine", *arguments)),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")},
                start_new_session=True,
            )

    async def kill(self, place: int) -> None:
        """Kill it with -9."""
        process = self._processes.pop(place)
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()

    async def end(self) -> None:
        """Kill all that run."""
        for place in list(self._processes):
            await self.kill(place)
        self.look()

    def look(self) -> None:
        """Read what was noted since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        self.notes += [msgspec.json.decode(line, type=Note) for line in whole.splitlines()]

    def drivers(self) -> dict[str, str]:
        """Agent → the machine that saved last."""
        return {note.agent: note.machine for note in self.notes if note.kind == "saved"}

    def busiest(self, random: Random) -> int:
        """The place of the machine with the most agents."""
        drivers = list(self.drivers().values())
        places = random.sample(sorted(self._processes), len(self._processes))
        return max(places, key=lambda place: drivers.count(self._names[place]))

    def agents_of(self, place: int) -> set[str]:
        return {agent for agent, machine in self.drivers().items() if machine == self._names[place]}

    async def at_work(self, agents: set[str], since: int, within_s: float) -> dict[str, float]:
        """Agent → when it first saved behind note number `since`; those that have not in time are left out."""
        first: dict[str, float] = {}
        ends_s = self._cluster.now_s() + within_s
        while agents - first.keys() and self._cluster.now_s() < ends_s:
            await self._cluster.check()
            await asyncio.sleep(_POLL_S)
            self.look()
            first = {note.agent: note.at_s for note in reversed(self.notes[since:]) if note.kind == "saved"}
        return {agent: at_s for agent, at_s in first.items() if agent in agents}


async def run(
    directory: Path, *, kills: int, seed: int, ttl_s: float, agents: int, say: Callable[[str], None], now_s: Callable[[], float]
) -> Verdict:
    """Start three nodes and three machines, kill machines so often, and judge.

    Raises:
        NodeFailed: the trial could not be run.
    """
    random = Random(seed)
    takeovers: list[Takeover] = []
    async with running(directory, nodes=3, now_s=now_s) as cluster:
        machines = Machines(cluster, directory, ttl_s=ttl_s, agents=agents)
        try:
            for place in range(3):
                await machines.start(place)
            everybody = {f"{AGENT}-{number}" for number in range(1, agents + 1)}
            for nth in range(kills):
                if len(await machines.at_work(everybody, len(machines.notes), _PATIENCE_S)) < agents:
                    raise NodeFailed(f"not all agents were at work within {_PATIENCE_S:g} s; see {directory}")
                found = await _strike(cluster, machines, random)
                takeovers += found
                slowest = max((each.took_s or _PATIENCE_S for each in found), default=0.0)
                blow = found[0].blow if found else "machine without agents"
                say(f"kill {nth + 1}/{kills}, {blow}: {len(found)} agents, the last at work elsewhere after {slowest:.2f} s")
            await machines.at_work(everybody, len(machines.notes), _PATIENCE_S)
        finally:
            await machines.end()
        states = await _states(cluster)
    return judge(machines.notes, states, takeovers, ttl_s=ttl_s)


async def _strike(cluster: Cluster, machines: Machines, random: Random) -> list[Takeover]:
    """Kill the machine with the most agents, and return once they are at work elsewhere."""
    blow = random.choice(BLOWS)
    place = machines.busiest(random)
    node = cluster.nodes[place]
    agents, began_s = machines.agents_of(place), cluster.now_s()
    await machines.kill(place)
    if blow == "machine and node":
        await node.kill()
    machines.look()
    back = await machines.at_work(agents, len(machines.notes), _PATIENCE_S)
    if blow == "machine and node":
        await cluster.start(node)
    await machines.start(place)
    await asyncio.sleep(random.uniform(0.0, 3.0))
    return [Takeover(agent, blow, back[agent] - began_s if agent in back else None) for agent in sorted(agents)]


async def _states(cluster: Cluster) -> dict[str, int]:
    async with cluster.connect(cluster.urls(0)) as store:
        space = store.space(SPACE)
        found = {}
        async for name in space.threads(prefix=f"{AGENT}-"):
            resumption = await space.thread(name).resume()
            found[name] = int(resumption.state.get("n", 0))
        return found
