"""The replacements in writes, told to whoever makes them: beside the replies, whose forms are as they were.

Law: what is noted goes to the innermost `noting` around the call, in this task and those that it has begun; without one it is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from shoal.kinds.redaction.requests import Replaced

NOTED_MAX = 4096  # In one context; what comes beyond is dropped.

_noted: ContextVar[list[Replaced] | None] = ContextVar("replaced", default=None)


@contextmanager
def noting() -> Iterator[list[Replaced]]:
    """The replacements in the writes that are made in this context, in the order of their answers."""
    found: list[Replaced] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def note(replaced: Sequence[Replaced]) -> None:
    """Tell that this was replaced in a write that is answered now."""
    found = _noted.get()
    if found is not None:
        found.extend(replaced[: NOTED_MAX - len(found)])
