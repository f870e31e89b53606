"""Kill an agent at every point where it matters, start it again, and find effects that were repeated or lost.

The contents of a store as plain values, and the differences between two of them.

Law: only data that a reader sees is compared: heads' states, events, values. Ids, times
and the number of checkpoints may differ between runs that are equivalent.

    report = crash_everywhere(agent, tools={"charge": charge})
    report.raise_if_bad()

`agent` is the user's own: `async def agent(store, charge)`. It gets a real store, on
real nodes in virtual time, and its tools by their names. A first run without a crash
counts the points that it passes (see `machines` and `outside`). Then, for each
point: a run in which it dies there, is started again, and continues to its end.

Law: a run is decided by the agent, the seed and the points. If an agent itself reads
a clock or draws randomness, it cannot be distinguished from one that loses or repeats things.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.client.store import Space, Store
from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.protocol.session import Session
from shoal.testing.lives import Life, Outside, Point, Problem, Report, Tool, Trial, task_of_the_living, told
from shoal.testing.machines import RESTART_S, Machine, Machines, TooLong, WatchedSession, quiet, run

_SHOWN_MAX = 100

Contents = dict[str, Any]
"""Description ("counter crew/tokens", "thread crew/planner, branch main") → content."""


async def contents_of(store: Store, session: Session) -> Contents:
    """Read a store; `session` is one of the same node.

    A branch is its heads' states, a journal its events, a register its siblings.
    """
    found: Contents = {}
    async for name in store.spaces():
        space = store.space(name)
        await _threads(space, found)
        async for counter in space.counters():
            found[f"counter {name}/{counter}"] = await space.counter(counter).value()
        async for register in space.registers():
            found[f"register {name}/{register}"] = _one(await space.register(register).siblings())
        async for item in space.items.scan():
            found[f"item {name}/{'.'.join(item.namespace)}/{item.key}"] = _one([item.value, *item.siblings])
        async for document in space.documents():
            shown = await session.call(requests.ReadDocumentJson(name, document))
            found[f"document {name}/{document}"] = json.loads(shown.json)
    return found


async def _threads(space: Space, found: Contents) -> None:
    async for name in space.threads():
        thread = space.thread(name)
        for branch, heads in sorted((await thread.heads()).items()):
            states = [(await thread.load(head)).state for head in heads]
            found[f"thread {space.name}/{name}, branch {branch}"] = _one(states)
        events = [event.event async for event in thread.journal.read()]
        if events:
            found[f"journal of {space.name}/{name}"] = events


def _one(values: list[Any]) -> Any:
    """The value; if there are concurrent ones, a list of them in an order that does not depend on clocks."""
    return values[0] if len(values) == 1 else {"concurrent": sorted(values, key=told)}


def compare_contents(crashed: Contents, calm: Contents) -> Iterator[Problem]:
    """The differences between the run with a crash and the `calm` one."""
    for name in sorted(crashed.keys() | calm.keys()):
        if name.startswith("journal "):
            yield from compare_counts(
                Counter(map(told, crashed.get(name, []))), Counter(map(told, calm.get(name, []))), f" in the {name}"
            )
        elif name not in crashed:
            yield Problem("lost", f"{name} is not there; without a crash it is {_short(calm[name])}")
        elif name not in calm:
            yield Problem("differs", f"{name} is {_short(crashed[name])}; without a crash there is none")
        else:
            yield from _compare(name, crashed[name], calm[name])


def compare_counts(crashed: Counter[str], calm: Counter[str], where: str = "") -> Iterator[Problem]:
    """Effects or events that happened more or less often than in the `calm` run."""
    for what in sorted(crashed.keys() | calm.keys()):
        times, usual = crashed[what], calm[what]
        if usual == 0:
            yield Problem("differs", f"{_cut(what)}{where}: {times} times instead of never")
        elif times != usual:
            yield Problem("twice" if times > usual else "lost", f"{_cut(what)}{where}: {times} times instead of {usual}")


def _compare(name: str, crashed: Any, calm: Any) -> Iterator[Problem]:
    if told(crashed) == told(calm):
        return
    if isinstance(crashed, dict) and isinstance(calm, dict) and crashed.keys() == calm.keys():
        for key in sorted(calm, key=told):
            yield from _compare(f"{name}, {key}", crashed[key], calm[key])
    else:
        yield Problem("differs", f"{name} is {_short(crashed)} instead of {_short(calm)}")


def _short(value: Any) -> str:
    return _cut(told(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


Agent = Callable[..., Awaitable[object]]
Tools = Mapping[str, Tool] | Callable[[], Mapping[str, Tool]]
Normalise = Callable[[str, Any], Any]

NODES_MAX = 7
CRASHES_MAX = 3
STEPS_MAX = 500_000
"""Turns of the loop in one run: an agent that only spins is stopped."""


def crash_everywhere(
    agent: Agent,
    *,
    tools: Tools = {},  # noqa: B006  (nobody changes it)
    reads: Collection[str] = (),
    keys: Mapping[str, str] | None = None,
    seed: int = 0,
    nodes: int = 1,
    crashes: int = 1,
    durability: Durability = "local",
    finishes_within_s: float = 3600.0,
    normalise: Normalise = lambda _, content: content,
) -> Report:
    """Run `agent(store, **tools)` once without a crash, and then once for each point at which it can be killed.

    In one run it is killed alone, in another together with its node, which loses power. Then it
    is started again on the same node, or on the next one if there are several `nodes`. With `crashes` of
    2 it is killed again at each point of its recovery; that squares the number of runs.

    Args:
        tools: Async functions by name, or a function that returns them, which is called for each run: pass
            that if they share state, such as a list of sent mails.
        reads: Names of the tools that change nothing. They may be called any number of times.
        keys: Tool → its argument that is an idempotency key; the tool's service acts once per key.
        durability: The store's default durability.
        finishes_within_s: Virtual seconds from each start of the agent to its end.
        normalise: A function of a description ("counter crew/tokens", "thread crew/planner, branch main",
            "journal of crew/planner") and the content, which returns the content to compare. Remove times
            and other values that may differ between runs.

    Raises:
        InvalidInput: an argument is not legal, this is called from a coroutine, or the agent cannot be killed.
        Exception: an error of the agent in the run without a crash; TimeoutError if it does not end.
    """
    _check(nodes, crashes, finishes_within_s)
    made = tools if callable(tools) else lambda: tools
    scene = _Scene(agent, made, tuple(reads), dict(keys or {}), seed, nodes, durability, finishes_within_s, normalise)
    calm = scene.play((), with_node=False)
    if calm.failure is not None:
        raise calm.failure
    trials = [
        trial
        for with_node in (False, True)
        for trial in _trials(scene, calm, (), calm.points, with_node=with_node, crashes=crashes)
    ]
    return Report(calm.points, tuple(sorted(trials, key=lambda trial: [point.number for point in trial.crashes])))


def _check(nodes: int, crashes: int, finishes_within_s: float) -> None:
    if not 1 <= nodes <= NODES_MAX or not 1 <= crashes <= CRASHES_MAX or finishes_within_s <= 0:
        raise InvalidInput(
            f"nodes must be 1 to {NODES_MAX}, crashes 1 to {CRASHES_MAX}, and finishes_within_s above 0. Nothing was run."
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidInput("crash_everywhere runs an event loop of its own. Call it from a plain function, not from `async def`.")


@dataclass(frozen=True, slots=True)
class _Ending:
    """The result of one run. `points` are the points that the last life passed."""

    points: int
    crashes: tuple[Point, ...]
    effects: Mapping[str, int]
    confused: tuple[str, ...]
    contents: Contents
    failure: BaseException | None


@dataclass(frozen=True, slots=True)
class _Scene:
    """The common settings of all runs."""

    agent: Agent
    tools: Callable[[], Mapping[str, Tool]]
    reads: tuple[str, ...]
    keys: dict[str, str]
    seed: int
    nodes: int
    durability: Durability
    within_s: float
    normalise: Normalise

    def play(self, crash_at: tuple[int, ...], *, with_node: bool) -> _Ending:
        """Run once, with a crash at the numbered point of each life except the last."""
        outside = Outside(self.tools(), reads=self.reads, keys=self.keys)
        try:
            with quiet():
                return run(self._play(outside, crash_at, with_node=with_node), steps_max=STEPS_MAX)
        except TooLong:
            spinning = TimeoutError(f"it had not ended after {STEPS_MAX} turns of the loop")
            return _Ending(0, (), outside.effects, (), {}, spinning)

    async def _play(self, outside: Outside, crash_at: tuple[int, ...], *, with_node: bool) -> _Ending:
        asyncio.get_running_loop().set_task_factory(task_of_the_living)
        crashes: list[Point] = []
        async with Machines(self.nodes, seed=self.seed) as machines:
            for number, at in enumerate((*crash_at, None)):
                machine = machines.for_life(number)
                life = Life(crash_at=at, struck=_strike(machines, machine) if with_node else _nothing)
                failure = await life.live(self._born(life, machine, outside), within_s=self.within_s)
                await machines.bury()
                await outside.errands.done(within_s=self.within_s)
                await asyncio.sleep(RESTART_S)
                if life.crash is None:
                    break
                crashes.append(life.crash)
            contents = await self._contents(machines)
        return _Ending(life.passed, tuple(crashes), outside.effects, tuple(outside.confused), contents, failure)

    async def _born(self, life: Life, machine: Machine, outside: Outside) -> None:
        assert machine.node is not None
        store = machine.store(WatchedSession(machine.node.session(), life, machine.errands), self.durability)
        await self.agent(store, **outside.tools_for(life))

    async def _contents(self, machines: Machines) -> Contents:
        machines.start_all()
        await machines.converged()
        machine = machines.for_life(0)
        assert machine.node is not None
        session = machine.node.session()
        store: Store = machine.store(session, self.durability)
        found = await contents_of(store, session)
        return {name: self.normalise(name, content) for name, content in found.items()}


def _strike(machines: Machines, machine: Machine) -> Callable[[], None]:
    return lambda: machines.cut_power(machine)


def _nothing() -> None:
    return None


def _trials(
    scene: _Scene, calm: _Ending, before: tuple[int, ...], points: int, *, with_node: bool, crashes: int
) -> Iterator[Trial]:
    """Run the trials for each point and, up to `crashes` deep, for each point of the recovery from it."""
    for at in range(points):
        ending = scene.play((*before, at), with_node=with_node)
        yield Trial(ending.crashes, with_node, tuple(_problems(ending, calm, missed=len(ending.crashes) <= len(before))))
        if crashes > 1:
            yield from _trials(scene, calm, (*before, at), ending.points, with_node=with_node, crashes=crashes - 1)


def _problems(ending: _Ending, calm: _Ending, *, missed: bool) -> Iterator[Problem]:
    if isinstance(ending.failure, TimeoutError):
        yield Problem("unfinished", str(ending.failure))
    elif ending.failure is not None:
        yield Problem("raised", f"{type(ending.failure).__name__}: {ending.failure}")
    elif missed:
        yield Problem("differs", "it did not come to that point again: without a crash it does not always do the same")
    yield from (Problem("differs", text) for text in ending.confused)
    done = compare_counts(Counter(ending.effects), Counter(calm.effects))
    if ending.failure is not None:
        # An agent that fails has lost nothing by that: its failure is the problem.
        yield from (problem for problem in done if problem.kind == "twice")
    else:
        yield from done
        yield from compare_contents(ending.contents, calm.contents)
