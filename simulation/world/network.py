"""What is between the machines: who reaches whom now, how fast, and in what weather.

Laws:
- A cut stops what passes from its sources to its targets, in that direction alone
  unless it says both. A machine that pauses hears nothing: what comes for it waits.
- Whatever passes, or waits to, is a `Line` between two ends. It is told when it falls
  silent, and when it may flow again; giving up, as a heartbeat would, is its own business.
- Clients are one place, called "client". Only delays trouble them: sockets keep order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Literal, Protocol

from simulation.plan import Weather

CLIENT = "client"

DELAY_S = 0.0003, 0.003
"""From one machine to another, in fine weather."""

REORDERED_S = 0.05
"""How much a message is delayed at most that others overtake."""

APART_S = 1e-6
"""Between two messages of one line that keep their order: timers of one moment run in any."""

Ends = tuple[str, str]
"""A source and a target."""

Passage = Literal["open", "held", "lost"]


class Line(Protocol):
    """Something that passes between two ends."""

    @property
    def ends(self) -> Ends: ...

    def silenced(self, paused: str | None, /) -> None:
        """From now on something of it does not pass: `paused` stands still, or there is a cut."""
        ...

    def flow(self) -> None:
        """What waits may pass, if nothing else is in its way."""
        ...


class Network:
    """`now` is the virtual time. Draws from the source that whoever sends has."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._cut: Counter[Ends] = Counter()
        self._paused: Counter[str] = Counter()
        self._weather: list[Weather] = []
        self._lines: dict[int, Line] = {}
        self._numbers = count()

    # ── who reaches whom ──────────────────────────────────────────────────────

    def passage(self, source: str, target: str) -> Passage:
        """What becomes of something that arrives from `source` at `target` now."""
        if self._cut[source, target]:
            return "lost"
        return "held" if self._paused[source] or self._paused[target] else "open"

    def both_open(self, one: str, other: str) -> bool:
        return self.passage(one, other) == "open" == self.passage(other, one)

    async def travel(self, source: str, target: str, random: Random) -> bool:
        """Go from one machine to another; False if that is not possible."""
        await asyncio.sleep(self.delay_s(random, (source, target)))
        return self.both_open(source, target)

    def is_foul(self, one: str, other: str) -> bool:
        """Whether there is any weather between two machines."""
        return bool(self._over((one, other)) or self._over((other, one)))

    # ── trouble ───────────────────────────────────────────────────────────────

    @contextmanager
    def cut(self, sources: list[str], targets: list[str], *, both: bool) -> Iterator[None]:
        """Nothing passes while the context is open."""
        pairs = [(source, target) for source in sources for target in targets if source != target]
        pairs += [(target, source) for source, target in pairs] if both else []
        self._cut.update(pairs)
        for line in self._between(pairs):
            line.silenced(None)
        try:
            yield
        finally:
            self._cut.subtract(pairs)
            for line in self._between(pairs):
                line.flow()

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """A machine hears nothing, and nothing of it is heard, while the context is open."""
        self._paused[name] += 1
        for line in self._of(name):
            line.silenced(name)
        try:
            yield
        finally:
            self._paused[name] -= 1
            for line in self._of(name):
                line.flow()

    def is_paused(self, name: str) -> bool:
        return self._paused[name] > 0

    @contextmanager
    def weather(self, weather: Weather) -> Iterator[None]:
        """What happens to messages while the context is open."""
        self._weather.append(weather)
        try:
            yield
        finally:
            self._weather.remove(weather)

    # ── what passes ───────────────────────────────────────────────────────────

    def add(self, line: Line) -> int:
        """Tell `line` of silences from now on; returns what `remove` wants."""
        number = next(self._numbers)
        self._lines[number] = line
        return number

    def remove(self, number: int) -> None:
        """Twice is allowed."""
        self._lines.pop(number, None)

    def delay_s(self, random: Random, ends: Ends) -> float:
        delay_s = random.uniform(*DELAY_S)
        return delay_s + sum(random.uniform(0.0, weather.delay_s) for weather in self._over(ends))

    def is_lost(self, random: Random, ends: Ends, size: int) -> bool:
        return any(size > weather.over_bytes and random.random() < weather.loss for weather in self._over(ends))

    def is_duplicated(self, random: Random, ends: Ends) -> bool:
        return any(random.random() < weather.duplicate for weather in self._over(ends))

    def is_overtaken(self, random: Random, ends: Ends) -> bool:
        return any(random.random() < weather.reorder for weather in self._over(ends))

    def _over(self, ends: Ends) -> list[Weather]:
        """The weather between two machines."""
        source, target = ends
        return [each for each in self._weather if not each.sources or (source in each.sources and target in each.targets)]

    def _between(self, pairs: list[Ends]) -> list[Line]:
        wanted = set(pairs)  # Looked up only.
        return [line for line in self._lines.values() if line.ends in wanted or line.ends[::-1] in wanted]

    def _of(self, name: str) -> list[Line]:
        return [line for line in self._lines.values() if name in line.ends]
