"""Decides whether a trace that begins here is recorded, before anything is made for it.

A provider that samples by the trace's id makes an id, a context, a result and a span for each of the 99 traces that it does not
record. Here only the id is drawn, and a span is asked for if it is among those that the provider would take.

Laws:
- The provider's own generator draws each id, and the provider decides again about each span that is asked for.
- Of another sampler nothing is known: the provider decides all.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

_HELD_MAX = 64  # Ids that were drawn by threads that have not begun their span yet.


class Drawing:
    """Draws the ids of traces for a tracer: it stands in the place of the tracer's generator."""

    __slots__ = ("_bound", "_draw", "_held", "_ids", "_limit")

    def __init__(self, ids: Any, *, bound: int, limit: int) -> None:
        self._ids, self._bound, self._limit = ids, bound, limit
        # The generator that providers have by default, without its frame: this is done for each request.
        own = type(ids).__name__ == "RandomIdGenerator" and type(ids).__module__ == "opentelemetry.sdk.trace.id_generator"
        self._draw: Callable[[], int] = partial(random.getrandbits, 128) if own else ids.generate_trace_id
        self._held: deque[int] = deque(maxlen=_HELD_MAX)

    def leaves_out(self) -> bool:
        """Draw an id: True if its trace is not recorded. Else begin its span."""
        drawn = self._draw()
        if drawn & self._limit >= self._bound:
            return True
        self._held.append(drawn)
        return False

    def generate_trace_id(self) -> int:
        """The id that was drawn for the span that begins."""
        try:
            return self._held.popleft()
        except IndexError:
            return int(self._ids.generate_trace_id())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ids, name)


def drawing(tracer: Any) -> Drawing | None:
    """Find what decides for the SDK's tracer whether a trace without a parent is recorded; None if only its sampler knows."""
    ids: Any = getattr(tracer, "id_generator", None)
    sampler: Any = getattr(tracer, "sampler", None)
    if isinstance(ids, Drawing):  # One tracer serves all who name themselves so.
        return ids
    root: Any = getattr(sampler, "_root", sampler)
    if ids is None or type(root).__name__ != "TraceIdRatioBased" or type(root).__module__ != "opentelemetry.sdk.trace.sampling":
        return None
    if sampler is not root and type(sampler).__name__ not in ("ParentBased", "ParentBasedTraceIdRatio"):
        return None
    tracer.id_generator = found = Drawing(ids, bound=root.bound, limit=root.TRACE_ID_LIMIT)
    return found
