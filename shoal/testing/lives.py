"""One life of an agent: its tasks, the points that it passes, and its end. The findings of all its lives are a report.

The findings of `crash_everywhere`: the problems for each point where an agent was killed.

Law: a trial without problems ended like the run without a crash, with the same effects,
equally often, and the same contents of the store.

Laws:
- Every task that is created during a life belongs to it, and is killed with it.
- After its end a life passes no point and sends no request: actions of its code
  while it unwinds (`finally`, `except`) have no effect.
- Requests that others carry out (`Errands`) continue after the life has ended.

The outside world: the effects of an agent's tools, counted.

Laws:
- An effect has happened when its tool has returned, even if the agent has
  died meanwhile. A tool that raises has done nothing.
- A tool with a key acts like a service with idempotency keys: of all calls with one
  key one happens, and all get its result.
- Tools that only read are not counted, and are not points.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import linecache
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any, Literal, TypeVar

from shoal.errors import InvalidInput
from shoal.records import NamedTuple

GROUPS_SHOWN_MAX = 20

Kind = Literal["twice", "lost", "differs", "raised", "unfinished"]


@dataclass(frozen=True, slots=True)
class Problem:
    """`twice` and `lost` are effects and journal events; `differs` is any other content of the store."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Point:
    """Where an agent can be killed. `number` counts from 0 within one life of the agent."""

    number: int
    moment: str  # "before save crew/planner was sent"
    where: str  # The agent's own line, "agent.py:31: await charge(order)"; empty if a background task of a handle passed it.

    def __str__(self) -> str:
        return f"{self.moment}   [{self.where}]" if self.where else self.moment


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. `crashes` are the points where it was killed, one for each life except the last."""

    crashes: tuple[Point, ...]
    with_node: bool  # Whether its node lost power at the same moment.
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether the run had no problem."""
        return not self.problems


class CrashUnsafe(AssertionError):
    """An agent does not survive every crash; the text is the report."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `crash_everywhere`. `points` is the number of points in the run without a crash; `str()` is for people."""

    points: int
    trials: tuple[Trial, ...]

    @property
    def ok(self) -> bool:
        """Whether no trial had a problem."""
        return all(trial.ok for trial in self.trials)

    @property
    def bad(self) -> tuple[Trial, ...]:
        """The trials with problems."""
        return tuple(trial for trial in self.trials if not trial.ok)

    def raise_if_bad(self) -> None:
        """Raise if any trial had a problem.

        Raises:
            CrashUnsafe: one had. It is an AssertionError with the report as its text.
        """
        if not self.ok:
            raise CrashUnsafe(str(self))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        verdict = "all ended like the run without a crash" if self.ok else f"{len(self.bad)} went wrong"
        yield f"{self.points} points where the agent can be killed, {len(self.trials)} runs: {verdict}."
        alike = groupby(_places(self.bad), key=lambda place: (place.victims, place.problems))
        for shown, ((victims, problems), places) in enumerate(alike):
            if shown == GROUPS_SHOWN_MAX:
                yield "\nThere is more: report.bad has all of it."
                return
            yield f"\nKilled {victims}"
            yield from (f"  {place.where}" for place in places)
            yield from (f"    → {problem}" for problem in problems)


class _Place(NamedTuple):
    where: str
    victims: str
    problems: tuple[Problem, ...]


def _places(trials: Iterable[Trial]) -> Iterator[_Place]:
    """One entry per place and outcome; usually the outcome does not depend on whether the node died too."""
    for where, here in groupby(trials, key=lambda trial: ", then ".join(map(str, trial.crashes))):
        for problems, alike in groupby(here, key=lambda trial: trial.problems):
            victims = " or ".join("together with its node" if trial.with_node else "alone" for trial in alike)
            yield _Place(where, victims, problems)


T = TypeVar("T")

CANCELS_MAX = 10
"""How often a task may swallow its cancellation; then it is not resumed any more."""

KILLS_MAX = 100

_KILL_S = 0.001
_SHOAL = str(Path(__file__).parent.parent)
_LOOP = ("asyncio/base_events.py", "asyncio/events.py")

_living: ContextVar[Life | None] = ContextVar("living", default=None)


class Life:
    """One life. `crash_at` is the number of the point where it ends, or None; `struck` is called at that moment."""

    def __init__(self, *, crash_at: int | None, struck: Callable[[], None]) -> None:
        self.passed = 0
        self.crash: Point | None = None
        self._crash_at = crash_at
        self._struck = struck
        self._over = False
        self._ended = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # In the order of their creation.

    async def live(self, agent: Coroutine[Any, Any, object], *, within_s: float) -> BaseException | None:
        """Run `agent` until it ends or crashes, then kill its remaining tasks. Return its error; None if it ended or crashed.

        Raises:
            InvalidInput: one of its tasks cannot be killed.
        """
        before = _living.set(self)
        try:
            task = asyncio.get_running_loop().create_task(agent)
        finally:
            _living.reset(before)
        task.add_done_callback(lambda _: self._ended.set())
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            return TimeoutError(f"it had not ended {within_s:g} virtual seconds after it was started")
        finally:
            ended = task.done() and not self._over
            await self._bury()
        if not ended:
            return None
        return asyncio.CancelledError("it cancelled itself") if task.cancelled() else task.exception()

    async def reach(self, moment: str) -> None:
        """Pass a point, or crash there. If this life is over, never return."""
        await self.go_on()
        number, self.passed = self.passed, self.passed + 1
        if number == self._crash_at:
            self.crash = Point(number, moment, _line(sys._getframe(1)))
            self._end()
            self._struck()
            await self.go_on()

    async def go_on(self) -> None:
        """Return if this life is not over; else never return."""
        if self._over:
            await asyncio.get_running_loop().create_future()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Add a task, which is cancelled when this life ends."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if self._over and not task.cancelled():
            task.exception()  # Retrieved, because nobody else will, and asyncio would log it.

    def _end(self) -> None:
        self._over = True
        self._ended.set()
        for task in list(self._tasks):
            task.cancel()

    async def _bury(self) -> None:
        """Kill all tasks, as `kill -9` does, including those that suppress their cancellation.

        Raises:
            InvalidInput: a coroutine continues to yield while it is closed.
        """
        for attempt in range(KILLS_MAX):
            self._end()
            if not self._tasks:
                return
            if attempt >= CANCELS_MAX:
                self._close()
            await asyncio.wait(list(self._tasks), timeout=_KILL_S)
        raise InvalidInput(
            f"the agent cannot be killed: {next(iter(self._tasks))!r} continues after every exception. "
            "Let it pass CancelledError and GeneratorExit on."
        )

    def _close(self) -> None:
        for task in self._tasks:
            if isinstance(coroutine := task.get_coro(), CoroutineType):
                with suppress(RuntimeError):  # "coroutine ignored GeneratorExit"
                    coroutine.close()


class Errands:
    """Work that others do for an agent: requests at a node, effects outside. It continues after the agent has died."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def run(self, errand: Coroutine[Any, Any, T]) -> T:
        """Run `errand` to its end, even if the caller is cancelled, and return its result."""
        before = _living.set(None)
        try:
            task = asyncio.get_running_loop().create_task(errand)
        finally:
            _living.reset(before)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        await asyncio.wait([task])
        return task.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # Retrieved, because the caller may be dead, and asyncio would log it.

    async def done(self, *, within_s: float) -> None:
        """Return once all have ended; those that take longer are dropped."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=within_s)
        self.drop()

    def drop(self) -> None:
        """Cancel all errands that have not ended."""
        for task in list(self._tasks):
            task.cancel()


def task_of_the_living(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], /, **options: Any
) -> asyncio.Task[T]:
    """A task factory by which the current life adopts each task that it creates."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    living = _living.get()
    if living is not None:
        living.adopt(task)
    return task


def _line(frame: FrameType | None) -> str:
    """The innermost line of the agent's own code, which is neither Shoal's nor the loop's."""
    while frame is not None and not frame.f_code.co_filename.endswith(_LOOP):
        file = frame.f_code.co_filename
        if not file.startswith(_SHOAL) and "asyncio" not in Path(file).parts:
            source = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}: {source}".rstrip(": ")
        frame = frame.f_back
    return ""


Tool = Callable[..., Awaitable[Any]]


class Outside:
    """The outside world of one run. `effects` counts calls by their text; `confused` are keys used with other arguments."""

    def __init__(
        self, tools: Mapping[str, Tool], *, reads: Collection[str] = (), keys: Mapping[str, str] | None = None
    ) -> None:
        """The arguments are those of `crash_everywhere`.

        Raises:
            InvalidInput: a tool is not a coroutine function, or a name in `reads` or `keys` is not that of a tool.
        """
        self.effects: Counter[str] = Counter()
        self.confused: list[str] = []
        self.errands = Errands()
        self._tools = dict(tools)
        self._reads = frozenset(reads)
        self._keys = dict(keys or {})
        self._keyed: dict[tuple[str, str], tuple[str, asyncio.Task[Any]]] = {}
        self._check()

    def _check(self) -> None:
        for name, tool in self._tools.items():
            if not (inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None))):  # noqa: B004
                raise InvalidInput(f"the tool {name!r} must be an async function. Nothing was run. Wrap it in one.")
        _known("reads", self._reads, self._tools)
        _known("keys", self._keys.keys(), self._tools)
        for name, argument in self._keys.items():
            if argument not in inspect.signature(self._tools[name]).parameters:
                raise InvalidInput(f"the tool {name!r} has no argument {argument!r}, which keys= names. Nothing was run.")

    def tools_for(self, life: Life) -> dict[str, Tool]:
        """The tools for one life of the agent."""
        return {name: self._tool_for(life, name) for name in self._tools}

    def _tool_for(self, life: Life, name: str) -> Tool:
        tool = self._tools[name]

        @functools.wraps(tool)
        async def read(*args: Any, **options: Any) -> Any:
            await life.go_on()
            return await self.errands.run(_awaited(tool(*args, **options)))

        @functools.wraps(tool)
        async def change(*args: Any, **options: Any) -> Any:
            call = told_call(name, args, options)
            await life.reach(f"before {call} happened")
            result = await self.errands.run(self._happen(name, call, args, options))
            await life.reach(f"after {call} happened, before its result was used")
            return result

        return read if name in self._reads else change

    async def _happen(self, name: str, call: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        key = self._key(name, args, options)
        if key is None:
            return await self._do(name, call, args, options)
        first = self._keyed.get((name, key))
        if first is None:
            task = asyncio.create_task(self._do(name, call, args, options))
            first = self._keyed[name, key] = (call, task)
        if first[0] != call:
            self.confused.append(f"{call} came with the key of {first[0]}")
        try:
            return await asyncio.shield(first[1])
        except Exception:
            self._keyed.pop((name, key), None)  # Nothing was done, so the key is free again.
            raise

    def _key(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        if name not in self._keys:
            return None
        given = inspect.signature(self._tools[name]).bind(*args, **options).arguments.get(self._keys[name])
        return None if given is None else told(given)

    async def _do(self, name: str, call: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = await self._tools[name](*args, **options)
        self.effects[call] += 1
        return result


def told_call(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """The text of a call, equal for calls with equal arguments."""
    return f"{name}({', '.join([*map(told, args), *(f'{key}={told(options[key])}' for key in sorted(options))])})"


def told(value: Any) -> str:
    """A text that is equal for equal values; it does not depend on the order of dicts and sets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{told(key)}: {told(entry)}" for key, entry in value.items())) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(told, value))) + "}"
    if isinstance(value, list | tuple):
        return ("[%s]" if isinstance(value, list) else "(%s)") % ", ".join(map(told, value))
    return repr(value)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _known(option: str, names: Set[str], tools: Mapping[str, Tool]) -> None:
    if unknown := sorted(names - tools.keys()):
        raise InvalidInput(f"{option}= names {', '.join(unknown)}, which tools= does not have. Nothing was run.")
