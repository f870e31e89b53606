"""Start a crew at each node, kill one node while its agents write, start it again, and wait until it has caught up.

The kill is SIGKILL, after two fifths of the victim's work, as soon as one of its agents
reports a write; the node returns after seven tenths of all work. Gates make sure that work is left
for both: a fast crew waits at them. When the director ends, for any reason, the
crews end too; the caller ends the nodes.
"""

from __future__ import annotations

import asyncio
import math
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import aiohttp

from shoal.demo.course import Course, Outage
from shoal.demo.lookout import View, joined, look
from shoal.demo.messages import CrewPlan, Failed, Finished, Message, OpenGate
from shoal.demo.nodes import Node, NodeFailed, node_name
from shoal.demo.workers import WorkerFailed, early_end, messages, tell, worker
from shoal.records import NamedTuple

KILL_AT = 0.4
RETURN_AT = 0.7
LOOK_INTERVAL_S = 0.25
CATCH_UP_INTERVAL_S = 0.02
CATCH_UP_S_MAX = 60.0


class Audience(Protocol):
    """The display of a run. Its methods are called on the director's loop and must not block."""

    def saw(self, message: Message) -> None:
        """A message of a crew arrived; the course has it already."""

    def saw_kill(self, outage: Outage) -> None:
        """A node was killed."""

    def saw_return(self, outage: Outage) -> None:
        """The killed node answers again."""

    def saw_caught_up(self, outage: Outage) -> None:
        """The killed node holds all that the others held when it came back."""


class Script(NamedTuple):
    """The node that is killed, and the times of the kill and the return."""

    victim: int
    kill_after: int  # Kill it after the victim's crew has done so many modules.
    return_after: int  # Start it again after all crews have done so many modules.
    gates: list[list[int]]  # Per gate and agent: how many modules it has done when it waits there.


def write_script(course: Course, *, random: Random) -> Script:
    """Draw a script in which each event comes during work: the last module before a gate begins only once the event is due."""
    totals = [agent.total for agent in course.agents]
    victim = random.choice([node for node in range(len(course.nodes)) if any(totals[n] for n in course.crew(node))])
    first = [min(total, math.ceil(total * KILL_AT) + 1) for total in totals]
    second = [min(total, math.ceil(total * RETURN_AT) + 2) for total in totals]
    crew = course.crew(victim)
    at_once = sum(totals[agent] > 0 for agent in crew)
    kill_after = min(round(KILL_AT * sum(totals[n] for n in crew)), sum(first[n] for n in crew) - at_once)
    # Only the victim's crew waits for the kill.
    gates = [[first[n] if n in crew else totals[n] for n in range(len(totals))], second]
    return Script(victim, max(0, kill_after), int(RETURN_AT * sum(totals)), gates)


async def direct(
    nodes: Sequence[Node],
    plans: Sequence[CrewPlan],
    script: Script,
    *,
    course: Course,
    audience: Audience,
    now_s: Callable[[], float],
    command: Sequence[str],
) -> None:
    """Run the survey to its end, including the kill and the return; `plans` are the crews' plans, by node.

    Raises:
        WorkerFailed: a crew ended early.
        NodeFailed: a node ended by itself, did not come back, or did not catch up.
    """
    director = _Director(nodes, script, course, audience, now_s)
    try:
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(director.look(http))
            crews = [tasks.create_task(director.follow(plan, command)) for plan in plans]
            guards = [tasks.create_task(node.watch()) for node in nodes]
            await director.play(http)
            await asyncio.gather(*crews)
            await director.settle(http)
            for task in (looking, *guards):
                task.cancel()
    except BaseExceptionGroup as group:
        # The first error ended the other tasks.
        raise group.exceptions[0] from None


class _Director:
    def __init__(
        self,
        nodes: Sequence[Node],
        script: Script,
        course: Course,
        audience: Audience,
        now_s: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._script = script
        self._course = course
        self._audience = audience
        self._now_s = now_s
        self._crews: list[Process] = []
        self._gates_open = 0
        self._killed = asyncio.Event()
        self._return_due = asyncio.Event()

    # ── the crews ─────────────────────────────────────────────────────────────

    async def follow(self, plan: CrewPlan, command: Sequence[str]) -> None:
        """Run one crew, from its start to its end."""
        async with worker(command, plan) as (process, said):
            self._crews.append(process)
            for _ in range(self._gates_open):
                await tell(process, OpenGate())
            finished = False
            async for message in messages(process):
                self._course.note(message, now_s=self._now_s())
                self._audience.saw(message)
                if isinstance(message, Failed):
                    raise WorkerFailed(message.reason)
                finished = finished or isinstance(message, Finished)
                self._see_what_is_due()
            self._crews.remove(process)
        if not finished:
            raise early_end(process, said)

    def _see_what_is_due(self) -> None:
        course, script = self._course, self._script
        crew = course.crew(script.victim)
        writing = course.in_the_air.keys() & set(crew)
        if course.outage is None and writing and sum(course.agents[n].done for n in crew) >= script.kill_after:
            # Kill it here: another task would run only after the writes are made.
            self._nodes[script.victim].kill()
            self._audience.saw_kill(course.note_kill(script.victim, now_s=self._now_s()))
            self._killed.set()
        if course.outage is not None and course.done >= script.return_after:
            self._return_due.set()

    async def _open_gate(self) -> None:
        self._gates_open += 1
        for crew in list(self._crews):
            await tell(crew, OpenGate())

    # ── the victim ────────────────────────────────────────────────────────────

    async def play(self, http: aiohttp.ClientSession) -> None:
        """Wait for the kill, then start the victim again when it is due."""
        await self._killed.wait()
        await self._open_gate()
        await self._return_due.wait()
        await self._open_gate()
        assert self._course.outage is not None
        await self._bring_back(self._nodes[self._script.victim], self._course.outage, http)

    async def _bring_back(self, victim: Node, outage: Outage, http: aiohttp.ClientSession) -> None:
        state = self._course.nodes[victim.number]
        state.state = "starting"
        held = max(
            (member.operations or 0 for view in await self._others(victim, http) if (member := view.of(state.name))), default=0
        )
        await victim.start()
        ready_s = self._now_s()
        target = joined(await self._others(victim, http))
        outage.down_s, outage.missed = ready_s - outage.at_s, sum(target.values()) - held
        state.state = "catching up"
        self._audience.saw_return(outage)
        await self._caught_up(victim, http, target, by_s=ready_s + CATCH_UP_S_MAX)
        outage.caught_up_s = self._now_s() - ready_s
        state.state = "up"
        self._audience.saw_caught_up(outage)

    async def _caught_up(self, victim: Node, http: aiohttp.ClientSession, target: dict[str, int], *, by_s: float) -> None:
        while True:
            view = await look(http, victim.url)
            if view is not None and view.covers(target):
                return
            if self._now_s() > by_s:
                raise NodeFailed(f"{node_name(victim.number)} was back but did not catch up within {CATCH_UP_S_MAX:.0f} s")
            await asyncio.sleep(CATCH_UP_INTERVAL_S)

    # ── the nodes ─────────────────────────────────────────────────────────────

    async def look(self, http: aiohttp.ClientSession) -> None:
        """Keep the course's views of all nodes fresh, until cancelled."""
        while True:
            self._course.note_views(await self._views(http))
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def settle(self, http: aiohttp.ClientSession) -> None:
        """Return once all nodes report equal digests, or after a while; the verdict then shows the differences."""
        by_s = self._now_s() + CATCH_UP_S_MAX
        while self._now_s() < by_s:
            views = await self._views(http)
            if None not in views and len({view.digest for view in views if view is not None}) == 1:
                self._course.note_views(views)
                return
            await asyncio.sleep(CATCH_UP_INTERVAL_S)

    async def _others(self, victim: Node, http: aiohttp.ClientSession) -> list[View]:
        views = await self._views(http)
        return [view for view, node in zip(views, self._nodes, strict=True) if view is not None and node is not victim]

    async def _views(self, http: aiohttp.ClientSession) -> list[View | None]:
        async def view_of(node: Node) -> View | None:
            return await look(http, node.url) if node.is_running else None

        return await asyncio.gather(*(view_of(node) for node in self._nodes))
