"""What users felt and how far nodes were behind, in slices of time.

Laws:
- There are at most `SLICES_MAX` slices, however long the trial: when they are full, pairs are joined, and each
  then covers twice the time.
- An answer counts when it came; how long it took is held against the moment at which it was asked for, because
  that is when its user began to wait.
- A slice keeps no single answer: durations are counted by steps of 9 %, so that slices can be joined.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import zip_longest
from math import ceil, log2
from typing import Literal

import msgspec

SLICES_MAX = 480
"""More than a picture of 1,100 pixels can show apart."""

SLICE_S = 0.25
"""How long a slice is at first."""

LOOK_S = 0.5
"""Between two looks at how far a node is behind."""

GOALS_MAX = 4096
"""What the nodes held together, at so many looks: a node that is behind for longer is shown as behind for as long."""

_STEPS = 8  # In a factor of two.

Answer = Literal["write", "read"]


class Slice(msgspec.Struct):
    writes: int = 0
    reads: int = 0
    took: dict[int, int] = {}  # Step of the duration → how many requests that were asked then took so long.
    errors: dict[str, int] = {}  # By code.
    lag_s: dict[str, float] = {}  # By node: for how long it had lacked what others held, at most.

    def join(self, other: Slice) -> Slice:
        joined = Slice(
            self.writes + other.writes, self.reads + other.reads, dict(self.took), dict(self.errors), dict(self.lag_s)
        )
        for step, count in other.took.items():
            joined.took[step] = joined.took.get(step, 0) + count
        for code, count in other.errors.items():
            joined.errors[code] = joined.errors.get(code, 0) + count
        for node, lag_s in other.lag_s.items():
            joined.lag_s[node] = max(joined.lag_s.get(node, 0.0), lag_s)
        return joined

    def percentile_s(self, share: float) -> float | None:
        """How long a request took that was slower than this share of all; None: nothing was asked."""
        left = ceil(share * sum(self.took.values()))
        for step in sorted(self.took):
            left -= self.took[step]
            if left <= 0:
                return float(2 ** (step / _STEPS))
        return None


class Lags:
    """For how long each node has lacked what any of them held, as the harness saw it: a node that is away, or was just
    started, knows less of the others than they do.
    """

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, int]] = {}
        self._goals: deque[tuple[float, dict[str, int]]] = deque(maxlen=GOALS_MAX)  # In the order of time; they only grow.

    def seen(self, node: str, vector: Mapping[str, int] | None, *, now_s: float) -> float:
        """Note what a node holds, or with None that it does not answer; and return its lag in seconds."""
        if vector is not None:
            self._known[node] = vector
        own = self._known.get(node, {})
        nth = bisect_left(self._goals, True, key=lambda goal: self._lacks(own, goal[1]))
        lag_s = now_s - self._goals[nth][0] if nth < len(self._goals) else 0.0
        if vector is not None:
            goal = self._goals[-1][1] if self._goals else {}
            self._goals.append(
                (now_s, {origin: max(goal.get(origin, 0), vector.get(origin, 0)) for origin in {*goal, *vector}})
            )
        return lag_s

    def _lacks(self, own: Mapping[str, int], goal: Mapping[str, int]) -> bool:
        """Origins that nobody names any more are retired: all nodes hold what they issued."""
        named = {origin for vector in self._known.values() for origin in vector}
        return any(own.get(origin, 0) < count for origin, count in goal.items() if origin in named)


class Samples(msgspec.Struct):
    """Times are those of the cluster's clock."""

    began_s: float = 0.0
    slice_s: float = SLICE_S
    slices: list[Slice] = []

    def answered(self, answer: Answer, *, asked_s: float, now_s: float) -> None:
        at = self._at(now_s)
        if answer == "write":
            at.writes += 1
        else:
            at.reads += 1
        step = round(_STEPS * log2(max(now_s - asked_s, 1e-6)))
        asked = self._at(asked_s)
        asked.took[step] = asked.took.get(step, 0) + 1

    def failed(self, code: str, *, now_s: float) -> None:
        at = self._at(now_s)
        at.errors[code] = at.errors.get(code, 0) + 1

    def behind(self, node: str, lag_s: float, *, now_s: float) -> None:
        at = self._at(now_s)
        at.lag_s[node] = max(at.lag_s.get(node, 0.0), lag_s)

    def whole(self) -> Slice:
        """All slices as one."""
        whole = Slice()
        for each in self.slices:
            whole = whole.join(each)
        return whole

    def _at(self, now_s: float) -> Slice:
        nth = max(0, int((now_s - self.began_s) / self.slice_s))
        while nth >= SLICES_MAX:
            halves = zip_longest(self.slices[::2], self.slices[1::2], fillvalue=Slice())
            self.slices = [one.join(other) for one, other in halves]
            self.slice_s *= 2
            nth //= 2
        while nth >= len(self.slices):
            self.slices.append(Slice())
        return self.slices[nth]
