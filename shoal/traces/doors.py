"""Requests over HTTP, and the contexts of W3C Trace Context that come with them.

Laws:
- A context that is too long or malformed counts as none; the request goes on.
- A caller that does not record its trace decides that for what its request does here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shoal.protocol.tracing import Carried, carried_of
from shoal.traces.provider import tracing
from shoal.traces.stages import code_of

if TYPE_CHECKING:
    from opentelemetry.context import Context

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
