"""OpenTelemetry, if the program has loaded it and set a provider of traces.

A provider that samples by the trace's id makes an id, a context, a result and a span for each of the 99 traces that it does not
record. Here only the id is drawn, and a span is asked for if it is among those that the provider would take (`Drawing`).

Laws:
- It is never loaded here: without a provider each call costs one look.
- A provider that is set after a store was opened counts from then on.
- The ids of spans and their times come from here alone, so a simulation can give its own.
- Every attribute has a bounded length.
- An error of the provider, of its sampler or of its processors, reaches no caller: the span is lost.
- The provider's own generator draws each id, and the provider decides again about each span that is asked for.
- Of another sampler nothing is known: the provider decides all.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.tracing import NOT_RECORDED, TRACESTATE_CHARS_MAX, Carried, Untold
from shoal.records import NamedTuple
from shoal.traces.spans import ATTRIBUTE_CHARS_MAX, ATTRIBUTES, CONTENT, NONE, TOOLS

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

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


VARIABLE = "SHOAL_TRACE_NAMES"
_NAMELESS = f"00-{'f' * 32}-{'f' * 16}-00"  # Of a trace that is not recorded.
_NEEDS = {row.name: row.needs for row in ATTRIBUTES}
_SHOWN: dict[str, tuple[str, ...]] = {NONE: ("",), TOOLS: ("", TOOLS), CONTENT: ("", TOOLS, CONTENT)}


class Common(NamedTuple):
    """A name, a kind and attributes that many spans share."""

    name: str
    kind: str
    attributes: Mapping[str, str]  # That are always shown, and short.


class Tracing:
    """A provider of traces, and what is made with it. `names`: as SHOAL_TRACE_NAMES; another word counts as "none"."""

    def __init__(self, provider: TracerProvider, *, now_ns: Callable[[], int] = time.time_ns, names: str = TOOLS) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context, get_current

        self.trace = trace
        self.now_ns = now_ns
        self._tracer = provider.get_tracer("shoal", __version__)
        decides = drawing(self._tracer)
        self._left_out: Callable[[], bool] = _never if decides is None else decides.leaves_out
        self._current = _current_of(get_current)
        self._levels = _SHOWN.get(names, _SHOWN[NONE])
        self._nothing = Context()
        [self._key] = trace.set_span_in_context(trace.INVALID_SPAN, self._nothing)
        self._kinds = {
            "client": trace.SpanKind.CLIENT,
            "server": trace.SpanKind.SERVER,
            "internal": trace.SpanKind.INTERNAL,
        }
        self._failed = trace.StatusCode.ERROR
        self._is_broken = False
        self.unrecorded = self.remote(Carried(_NAMELESS))
        """The context of what is within a trace that is not recorded."""
        self.of_kinds: dict[tuple[type[Any], str, str], Common] = {}
        """By the kind of a request, its durability and its side; all of these are few."""

    def shows(self, attribute: str) -> bool:
        """Whether spans have this attribute."""
        return _NEEDS[attribute] in self._levels

    def kept(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that are shown, each within its bound."""
        return {
            name: value[:ATTRIBUTE_CHARS_MAX] if isinstance(value, str) else value
            for name, value in attributes.items()
            if self.shows(name) and value != ""
        }

    # ── contexts ──────────────────────────────────────────────────────────────

    def here(self) -> SpanContext:
        """The span in which the program is; an invalid one if it is in none."""
        return self.trace.get_current_span().get_span_context()

    def leaves_out(self) -> bool:
        """Whether what begins here now is not recorded, told at once. If it may be, begin its span: the provider decides."""
        context = self._current()
        if context and (span := context.get(self._key)) is not None:
            here: SpanContext = span.get_span_context()  # type: ignore[attr-defined]
            if here.is_valid:
                return not here.trace_flags & 1
        return self._left_out()

    def within(self, span: Span) -> Context:
        """The context of the children of a span."""
        return self.trace.set_span_in_context(span, self._nothing)

    def remote(self, carried: Carried | None) -> Context:
        """The context that came from elsewhere; an empty one if none did."""
        if carried is None:
            return self._nothing
        trace, parent = self.trace, carried.parent
        came = trace.SpanContext(
            int(parent[3:35], 16),
            int(parent[36:52], 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(parent[53:55], 16)),
            trace_state=trace.TraceState.from_header([carried.state]) if carried.state else None,
        )
        return self.within(trace.NonRecordingSpan(came))

    def carried(self, context: SpanContext) -> str:
        """A span's context, as a frame of a session carries it (`shoal.protocol.tracing.Carried.text`)."""
        if not context.is_valid:
            return ""
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"
        state = context.trace_state.to_header() if context.trace_state else ""
        return f"{parent} {state}" if 0 < len(state) <= TRACESTATE_CHARS_MAX else parent

    # ── spans ─────────────────────────────────────────────────────────────────

    def root(self) -> Context:
        """The context of a span without a parent."""
        return self._nothing

    def span(
        self,
        name: str,
        *,
        kind: str = "internal",
        parent: Context | None,
        at_ns: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> Span:
        """Begin a span; `parent` None: within the one in which the program is. Its attributes are shown as `kept` says."""
        try:
            shown = self.kept(attributes) if attributes else None
            return self._tracer.start_span(name, context=parent, kind=self._kinds[kind], attributes=shown, start_time=at_ns)
        except Exception as reason:  # Of a sampler or a processor.
            self._broken(reason)
            return self.trace.INVALID_SPAN

    def span_of(self, common: Common, parent: Context | None, at_ns: int) -> Span:
        """Begin a span; `parent` as in `span`. Cheap, if it is not recorded."""
        try:
            return self._tracer.start_span(common.name, parent, self._kinds[common.kind], common.attributes, None, at_ns)
        except Exception as reason:
            self._broken(reason)
            return self.trace.INVALID_SPAN

    def end(self, span: Span, at_ns: int) -> None:
        """End a span."""
        try:
            span.end(at_ns)
        except Exception as reason:  # Of a processor.
            self._broken(reason)

    def _broken(self, reason: Exception) -> None:
        if not self._is_broken:
            self._is_broken = True
            log(events.TRACES_BROKEN, reason=type(reason).__qualname__)

    def fail(self, span: Span, error: str) -> None:
        """Mark a span as failed, with the error's code or class. Its message may have content, and is not shown."""
        span.set_attribute("error.type", error[:ATTRIBUTE_CHARS_MAX])
        span.set_status(self.trace.Status(self._failed, error[:ATTRIBUTE_CHARS_MAX]))


def _never() -> bool:
    return False


def _current_of(get_current: Callable[[], Context]) -> Callable[[], Context]:
    """Find the context in which the program is: the variable itself, where OpenTelemetry keeps it in one."""
    from opentelemetry import context

    held = getattr(getattr(context, "_RUNTIME_CONTEXT", None), "_current_context", None)
    return held.get if isinstance(held, ContextVar) else get_current


_found: Tracing | None = None
_given: list[Tracing | None] = []


def tracing() -> Tracing | None:
    """The provider that is set; None if there is none."""
    if _given:
        return _given[-1]
    if _found is not None:
        return _found
    api = sys.modules.get("opentelemetry.trace")
    # `get_tracer_provider` makes one that does nothing if none is set, and takes longer.
    if api is None or getattr(api, "_TRACER_PROVIDER", None) is None:
        return None
    return _find(api)


def _find(api: Any) -> Tracing:
    global _found
    _found = Tracing(api.get_tracer_provider(), names=os.environ.get(VARIABLE, TOOLS) or TOOLS)
    Untold.text = NOT_RECORDED
    return _found


@contextmanager
def using(provider: Tracing | None) -> Iterator[None]:
    """Within, spans are made with this provider, whatever OpenTelemetry's global one is; None: none are made."""
    _given.append(provider)
    before, Untold.text = Untold.text, "" if provider is None else NOT_RECORDED
    try:
        yield
    finally:
        _given.pop()
        Untold.text = before
