"""The spans of agents, by OpenTelemetry's conventions for generative AI: runs, and calls of tools. And the contexts of W3C
Trace Context with which requests come over HTTP.

Laws:
- What runs within is within the span, if it runs in the same task. A block that is entered and left in two tasks, as those
  of the blocking store are, has its span, and what its caller does is beside it.
- A context of HTTP that is too long or malformed counts as none; the request goes on.
- A caller that does not record its trace decides that for what its request does here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shoal.protocol.tracing import Carried, carried_of
from shoal.traces.provider import Tracing, tracing
from shoal.traces.sessions import code_of
from shoal.traces.spans import AGENT, TOOL

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

HEADERS = _TRACEPARENT, _TRACESTATE = "traceparent", "tracestate"
"""In which W3C Trace Context comes."""
_SERVER_ERROR = 500


def carried_by(headers: Mapping[str, str]) -> Carried | None:
    """The context in the headers of a request, or in the query of an upgrade; None if there is no legal one."""
    return carried_of(headers.get(_TRACEPARENT, ""), headers.get(_TRACESTATE, ""))


@contextmanager
def http(method: str, route: str, headers: Mapping[str, str], request_id: str) -> Iterator[Callable[[int], None]]:
    """A context in which a request over HTTP is answered. Tell the status to what it yields."""
    known, carried = tracing(), carried_by(headers)
    if known is None:
        yield _untold
        return
    if carried is not None and not carried.is_sampled:
        with entered(known.remote(carried)):
            yield _untold
        return
    if carried is None and known.leaves_out():
        with entered(known.unrecorded):
            yield _untold
        return
    attributes = {"http.request.method": method, "http.route": route, "shoal.request_id": request_id}
    name = f"{method} {route}"
    span = known.span(name, kind="server", parent=known.remote(carried), at_ns=known.now_ns(), attributes=attributes)

    def answered(status: int) -> None:
        span.set_attribute("http.response.status_code", status)
        if status >= _SERVER_ERROR:
            known.fail(span, str(status))

    try:
        with entered(known.within(span)):
            yield answered
    except BaseException as error:
        known.fail(span, code_of(error))
        raise
    finally:
        known.end(span, known.now_ns())


def _untold(_: int) -> None:
    """Nobody records the status."""


@contextmanager
def entered(context: Context) -> Iterator[None]:
    """Within, the program is in this context. Leaving it in another task than it was entered in is no error."""
    token = enter(context)
    try:
        yield
    finally:
        leave(token)


def enter(context: Context) -> Any:
    """From now on the program is in this context, until what is returned is given to `leave`."""
    from opentelemetry.context import attach

    return attach(context)


def leave(token: Any) -> None:
    """Undo an `enter`; in another task, which has a context of its own, nothing is to be undone."""
    from opentelemetry.context import detach

    with suppress(ValueError):
        if hasattr(token, "var"):  # `detach` logs an error in another task.
            token.var.reset(token)
        else:
            detach(token)


class ToolSpan:
    """The span of one call of a tool in the ledger; nothing if no traces are wanted."""

    __slots__ = ("_known", "_span", "_token")

    def __init__(self, name: str, *, key: str, thread: str) -> None:
        self._known = known = tracing()
        self._span: Span | None = None
        self._token: Any = None
        if known is None:
            return
        if known.leaves_out():
            if not known.here().is_valid:  # What is within decides nothing anew.
                self._token = enter(known.unrecorded)
            return
        attributes = {
            "gen_ai.operation.name": TOOL,
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": key,
            "gen_ai.conversation.id": thread,
        }
        self._span = known.span(_named(known, TOOL, name), parent=None, at_ns=known.now_ns(), attributes=attributes)
        self._token = enter(known.within(self._span))

    def begun(self, *, attempt: int, is_done: bool) -> None:
        """Its intent is written, or its result was found."""
        if self._span is not None:
            self._span.set_attribute("shoal.step.attempt", attempt)
            self._span.set_attribute("shoal.step.replayed", is_done)

    def end(self, error: BaseException | None = None) -> None:
        """It is over."""
        known, span, self._span = self._known, self._span, None
        if known is None:
            return
        token, self._token = self._token, None
        if token is not None:
            leave(token)
        if span is None:
            return
        if error is not None:
            known.fail(span, code_of(error))
        known.end(span, known.now_ns())


@contextmanager
def running(agent: str, name: str) -> Iterator[None]:
    """A context in which an agent runs: `agent` is declared, `name` is the one that runs."""
    known = tracing()
    if known is None:
        yield
        return
    if known.leaves_out():
        with entered(known.unrecorded):
            yield
        return
    attributes = {
        "gen_ai.operation.name": AGENT,
        "gen_ai.agent.name": agent,
        "gen_ai.agent.id": name,
        "gen_ai.conversation.id": name,
    }
    span = known.span(_named(known, AGENT, agent), parent=None, at_ns=known.now_ns(), attributes=attributes)
    try:
        with entered(known.within(span)):
            yield
    except BaseException as error:
        known.fail(span, code_of(error))
        raise
    finally:
        known.end(span, known.now_ns())


def _named(known: Tracing, operation: str, name: str) -> str:
    shown = known.kept({"gen_ai.tool.name": name}).get("gen_ai.tool.name", "")
    return f"{operation} {shown}" if shown else operation
