"""What users felt and how far nodes were behind, in slices of time.

Laws:
- There are at most `SLICES_MAX` slices, however long the trial: when they are full, pairs are joined, and each
  then covers twice the time.
- An answer counts when it came; how long it took is held against the moment at which it was asked for, because
  that is when its user began to wait.
- A slice keeps no single answer: durations are counted by steps of 9 %, so that slices can be joined.
"""

from __future__ import annotations

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
"""Between two looks at how far the nodes are behind."""

_STEPS = 8  # In a factor of two.

Answer = Literal["write", "read"]


class Slice(msgspec.Struct):
    writes: int = 0
    reads: int = 0
    took: dict[int, int] = {}  # Step of the duration → how many requests that were asked then took so long.
    errors: dict[str, int] = {}  # By code.
    lag_s: dict[str, float] = {}  # By node: the age of the oldest operation that it lacked, at most.

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

    def behind(self, lag_s: Mapping[str, float], *, now_s: float) -> None:
        at = self._at(now_s)
        for node, each_s in lag_s.items():
            at.lag_s[node] = max(at.lag_s.get(node, 0.0), each_s)

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
