"""The spans of agents, by OpenTelemetry's conventions for generative AI: runs, and calls of tools.

Law: what runs within is within the span, if it runs in the same task. A block that is entered and left in two tasks, as those
of the blocking store are, has its span, and what its caller does is beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.traces.doors import enter, entered, leave
from shoal.traces.provider import Tracing, tracing
from shoal.traces.spans import AGENT, TOOL
from shoal.traces.stages import code_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span


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
