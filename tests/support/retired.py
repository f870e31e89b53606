"""What a replica remembers of origins that were retired."""

from __future__ import annotations

from shoal.crdt.dot import Origin


class Past:
    """The retired origins of a replica; `times` has those that it remembers, `lasts` the last operation of each."""

    def __init__(
        self, times: dict[Origin, int], forgotten: int, forgotten_hlc: int = 0, *, lasts: dict[Origin, int] | None = None
    ) -> None:
        self.times, self.lasts = times, lasts or {}
        self.horizon = max([forgotten, *times.values()])
        self.forgotten, self.forgotten_hlc = forgotten, forgotten_hlc

    def last(self, origin: Origin, /) -> int:
        return self.lasts.get(origin, 0)

    def time(self, origin: Origin, /) -> int:
        return self.times.get(origin, 0)
