"""Kill an agent at every point where it matters, start it again, and find effects that were repeated or lost.

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
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.client.store import Store
from shoal.errors import InvalidInput
from shoal.protocol.requests import Durability
from shoal.testing.contents import Contents, compare_contents, compare_counts, contents_of
from shoal.testing.crash_report import Point, Problem, Report, Trial
from shoal.testing.lives import Life, Outside, Tool, task_of_the_living
from shoal.testing.machines import RESTART_S, Machine, Machines, TooLong, WatchedSession, quiet, run

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
