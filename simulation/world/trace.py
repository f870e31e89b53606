"""What happened in a run, in order: as one hash, and as lines that a person can read.

Law: two runs with the same hash did the same things at the same times. Everything
that could differ is noted: messages, writes, answers, faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256

LINES_MAX = 4000


class Trace:
    """`now` is the virtual time in seconds. The last `lines_max` lines are kept, and all that was marked."""

    def __init__(self, now: Callable[[], float], *, lines_max: int = LINES_MAX) -> None:
        self._now = now
        self._hash = sha256()
        self._lines: deque[str] = deque(maxlen=lines_max)
        self._marked: deque[str] = deque(maxlen=lines_max)
        self.events = 0

    def note(self, who: str, what: str, detail: object = "") -> None:
        """Something of the many things that happen: a message, a write."""
        self._take(f"{self._now():10.4f}  {who:<8} {what} {detail}".rstrip())

    def mark(self, who: str, what: str, detail: object = "") -> None:
        """Something that a reader of the time line must see: a fault, a request, an answer, a violation."""
        line = f"{self._now():10.4f}  {who:<8} {what} {detail}".rstrip()
        self._take(line)
        self._marked.append(line)

    def _take(self, line: str) -> None:
        self._hash.update(line.encode() + b"\n")
        self._lines.append(line)
        self.events += 1

    def digest(self) -> str:
        return self._hash.copy().hexdigest()

    def timeline(self) -> Iterator[str]:
        """What was marked, in order."""
        yield from self._marked

    def last(self, count: int) -> list[str]:
        """The last things that happened, marked or not."""
        return list(self._lines)[-count:]
