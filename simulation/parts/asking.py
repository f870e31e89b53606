"""Graphs that stop at a question: checkpoints under labels in order, what tasks ask beside them, outputs, labels that go.

Laws, judged on each node by what it lists as waiting and what it shows of the thread:
- A question that was acknowledged, beside the last checkpoint, whose task has no output, is shown, and the thread waits (3).
- A question is shown that somebody asked, and none whose task has an output that was acknowledged (10).
- A thread that shows a question is listed as one that waits, and no other is (10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random

from msgspec.msgpack import Ext, encode

from shoal.errors import ShoalError
from shoal.kinds.label.asks import ROOT
from shoal.kinds.label.state import Note
from shoal.protocol import requests
from shoal.protocol.requests import Annotate, ThreadSummary, Unlabel, Write
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

FAMILY = "asking"
_TASKS_MAX = 3  # At one checkpoint: a summary shows four questions.
_AHEAD = 0.2  # The share of the questions that come before their checkpoint.


@dataclass(slots=True)
class Task:
    """A question. `asked` and `ended`: None, as long as that is not acknowledged."""

    number: int
    asked: Told | None = None
    ended: Told | None = None
    is_ended: bool = False  # Or may be.


@dataclass(slots=True)
class Point:
    """A checkpoint of a graph, and what is beside it."""

    number: int
    put: Told | None = None
    is_tried: bool = False  # Whether it may be there.
    is_dropped: bool = False  # Or may be.
    tasks: list[Task] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{ROOT}{self.number:06}"


@dataclass(slots=True)
class Graph:
    """A thread, which all agents run in turn."""

    thread: str
    points: list[Point] = field(default_factory=list)


class Asking:
    kinds: tuple[ActKind, ...] = ("graph-ask", "graph-put", "graph-end", "graph-drop")

    def __init__(self) -> None:
        self.graphs: dict[str, Graph] = {}
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {"graph-ask": agent.ask, "graph-put": agent.put, "graph-end": agent.end, "graph-drop": agent.drop}

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        if not self.graphs:
            return []
        listed = await _summaries(session, "waits")
        shown = await _summaries(session, "")
        found: list[Violation] = []
        for graph in self.graphs.values():
            summary = shown.get(graph.thread)
            asked = set() if summary is None else {int(each.says) for each in summary.questions}
            if bool(asked) != (graph.thread in listed):
                found.append(Violation("10", f"{graph.thread} shows the questions {sorted(asked)}, and is listed otherwise"))
            found += _judged(graph, asked, losses)
        return found


def _judged(graph: Graph, asked: set[int], losses: Losses) -> list[Violation]:
    found: list[Violation] = []
    tasks = {task.number: task for point in graph.points for task in point.tasks}
    if strange := asked - tasks.keys():
        found.append(Violation("10", f"{graph.thread} shows what nobody asked: {sorted(strange)}"))
    over = [number for number in asked & tasks.keys() if _is_owed(tasks[number].ended, losses)]
    if over:
        found.append(Violation("10", f"{graph.thread} shows the questions {sorted(over)}, whose tasks have ended"))
    last = max((point for point in graph.points if point.is_tried), key=lambda point: point.number, default=None)
    if last is None or last.is_dropped or not _is_owed(last.put, losses):
        return found  # It is not known which checkpoint is the last.
    owed = {task.number for task in last.tasks if not task.is_ended and _is_owed(task.asked, losses)}
    if not owed <= asked:
        found.append(Violation("3", f"{graph.thread} asked {sorted(owed)} at {last.label}, and shows {sorted(asked)}"))
    if elsewhere := asked & tasks.keys() - {task.number for task in last.tasks}:
        found.append(Violation("10", f"{graph.thread} stands at {last.label}, and shows {sorted(elsewhere)}, asked elsewhere"))
    return found


def _is_owed(told: Told | None, losses: Losses) -> bool:
    return told is not None and told.is_owed(losses)


async def _summaries(session: Session, state: str) -> dict[str, ThreadSummary]:
    found: dict[str, ThreadSummary] = {}
    cursor = ""
    while True:
        page = await session.call(requests.ListSummaries(SPACE, state, prefix=f"part/{FAMILY}/", after=cursor))  # type: ignore[arg-type]
        found |= {each.name: each for each in page.items}
        if not (cursor := page.cursor):
            return found


def _question(number: int) -> Note:
    """What LangGraph's saver writes of a task that stops at `interrupt("<number>")`."""
    fields = {"value": f"{number}", "id": f"{number:032x}", "response_schema": None}
    return _write(number, "__interrupt__", -3, encode([Ext(2, encode(["langgraph.types", "Interrupt", fields]))]))


def _output(number: int) -> Note:
    return _write(number, "branch:to:next", 0, encode(None))


def _write(number: int, channel: str, index: int, packed: bytes) -> Note:
    return Note(encode([f"task-{number}", index]), encode(["~pull", channel, "msgpack", packed]), index >= 0)


class _Agent:
    def __init__(self, asking: Asking, bench: Bench) -> None:
        self._asking = asking
        self._bench = bench
        self._graph = asking.graphs.setdefault(bench.name, Graph(bench.name))

    async def put(self, act: Act, random: Random) -> None:
        """The graph goes on to its next checkpoint, for which a question may be there already."""
        ahead = [point for point in self._graph.points if not point.is_tried and not point.is_dropped]
        await self._put(act, ahead[0] if ahead else self._begun())

    async def ask(self, act: Act, random: Random) -> None:
        if random.random() < _AHEAD:
            point = self._begun()
        else:
            there = [point for point in self._graph.points if point.is_tried and not point.is_dropped]
            point = there[-1] if there and len(there[-1].tasks) < _TASKS_MAX else await self._put(act, self._begun())
        task = Task(next(self._asking.numbers))
        point.tasks.append(task)

        def told() -> None:
            task.asked = self._bench.told(act.durability)

        await self._send(act, random, Annotate(SPACE, self._graph.thread, point.label, [_question(task.number)]), told)
        self._bench.did(f"ask {task.number} at {point.label}")

    async def end(self, act: Act, random: Random) -> None:
        """A task that was answered has an output."""
        open_tasks = [(point, task) for point in self._graph.points[-2:] for task in point.tasks if not task.is_ended]
        if not open_tasks:
            return
        point, task = random.choice(open_tasks)
        task.is_ended = True

        def told() -> None:
            task.ended = self._bench.told(act.durability)

        await self._send(act, random, Annotate(SPACE, self._graph.thread, point.label, [_output(task.number)]), told)
        self._bench.did(f"end {task.number} at {point.label}")

    async def drop(self, act: Act, random: Random) -> None:
        """The last checkpoint goes, as by `copy_run` or a user that forks: the one before asks again."""
        there = [point for point in self._graph.points if point.is_tried and not point.is_dropped]
        if not there:
            return
        there[-1].is_dropped = True
        await self._send(act, random, Unlabel(SPACE, self._graph.thread, [there[-1].label]), lambda: None)
        self._bench.did(f"drop {there[-1].label}")

    def _begun(self) -> Point:
        point = Point(next(self._asking.numbers))
        self._graph.points.append(point)
        return point

    async def _put(self, act: Act, point: Point) -> Point:
        point.is_tried = True
        try:
            await self._bench.space.thread(self._graph.thread).save(
                {"at": point.number}, label=point.label, overwrite=True, durability=act.durability
            )
        except ShoalError as error:
            self._bench.refused(error)
            raise
        point.put = self._bench.told(act.durability)
        self._bench.did(f"put {point.label}")
        return point

    async def _send(self, act: Act, random: Random, request: Write[object], told: Callable[[], None]) -> None:
        key = f"graph-{next(self._asking.numbers)}"

        async def send() -> None:
            await self._bench.client.session.call(request, key=key, durability=act.durability)
            told()

        try:
            await self._bench.send(act, random, send, of=type(request))
        except ShoalError as error:
            self._bench.refused(error)
            raise
