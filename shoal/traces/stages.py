"""The span of one request, and the spans of its stages in a node.

Laws:
- A stage that has not ended with the request ends with it, but for the acknowledgements of peers, which have their own time.
- What a request waits for is within its decision, if it is a write that is not made yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.protocol.tracing import Commit
from shoal.traces.provider import Tracing
from shoal.traces.spans import COMMIT, DECIDE, LINKS_MAX, PEER, QUEUE, REPLICATE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext


class RequestSpan:
    """The span of a request that is recorded, and of its stages (`shoal.protocol.tracing.Stages`)."""

    def __init__(self, tracing: Tracing, span: Span, *, arrived_ns: int | None = None, decides: bool = False) -> None:
        """`arrived_ns`: when it arrived at the node; None: it is at a client, and has no stages. `decides`: it is a write."""
        self.span = span
        self._tracing = tracing
        self._now_ns = tracing.now_ns
        self._here = tracing.within(span)
        self._decides = decides
        self._queue = None if arrived_ns is None else self._child(QUEUE, arrived_ns)
        self._decide: Span | None = None
        self._commits: deque[Span] = deque()
        self._committed: SpanContext | None = None
        self._wanted: list[str] = []  # The peers that are to acknowledge it, until it is durable here.
        self._early: set[str] = set()  # Those that did before.
        self._replicate: Span | None = None
        self._peers: dict[str, Span] = {}

    @property
    def name(self) -> str:
        """The name of its trace (`Stages.name`)."""
        return f"{self.span.get_span_context().trace_id:032x}"

    def _child(self, name: str, at_ns: int, within: Context | None = None) -> Span:
        return self._tracing.span(name, parent=within or self._here, at_ns=at_ns)

    def begun(self) -> None:
        """It has its turn (`Stages.begun`)."""
        if self._queue is None:
            return
        now_ns = self._now_ns()
        self._tracing.end(self._queue, now_ns)
        self._queue = None
        if self._decides:
            self._decide = self._child(DECIDE, now_ns)

    def issued(self, *, is_durable: bool) -> None:
        """A write of it is made (`Stages.issued`)."""
        now_ns = self._now_ns()
        if self._decide is not None:
            self._tracing.end(self._decide, now_ns)
            self._decide = None
        if not is_durable:
            self._commits.append(self._child(COMMIT, now_ns))

    def committed(self, commit: Commit, /) -> None:
        """The write is durable here (`Stages.committed`)."""
        if not self._commits:
            return  # Its request has ended.
        now_ns = self._now_ns()
        span = self._commits.popleft()
        self._committed = span.get_span_context()
        span.set_attribute("shoal.commit.number", commit.number)
        span.set_attribute("shoal.commit.writes", commit.writes)
        first = commit.together[0]
        for other in commit.together[1 : LINKS_MAX + 1] if first is self else (first,):
            if other is not self and isinstance(other, RequestSpan) and (linked := other.commit) is not None:
                span.add_link(linked)
        self._tracing.end(span, now_ns)
        if self._wanted and not self._commits:
            self._copy(now_ns)

    @property
    def commit(self) -> SpanContext | None:
        """The span of the group commit under way, or of the last one."""
        return self._commits[0].get_span_context() if self._commits else self._committed

    def copying(self, peers: Sequence[str], /) -> None:
        """These peers are to acknowledge the write (`Stages.copying`)."""
        self._wanted = list(peers)
        if self._wanted and not self._commits:
            self._copy(self._now_ns())

    def _copy(self, now_ns: int) -> None:
        self._replicate = self._child(REPLICATE, now_ns)
        within = self._tracing.within(self._replicate)
        for peer in self._wanted:
            attributes = {"shoal.peer": peer}
            self._peers[peer] = self._tracing.span(PEER, parent=within, at_ns=now_ns, attributes=attributes)
        self._wanted = []
        for peer in self._early:
            self.acknowledged(peer, True)
        self._early.clear()

    def acknowledged(self, peer: str, holds: bool, /) -> None:
        """A peer holds the write, or its time is over (`Stages.acknowledged`)."""
        span = self._peers.pop(peer, None)
        if span is None:
            self._early.add(peer)
            return
        if not holds:
            self._tracing.fail(span, "unacknowledged")
        self._tracing.end(span, self._now_ns())

    def copied(self) -> None:
        """Enough owners hold it (`Stages.copied`)."""
        if self._replicate is not None:
            self._tracing.end(self._replicate, self._now_ns())
            self._replicate = None

    @contextmanager
    def during(self, what: str, /) -> Iterator[None]:
        """A context in which it waits for something else (`Stages.during`)."""
        within = None if self._decide is None else self._tracing.within(self._decide)
        span = self._child(what, self._now_ns(), within)
        try:
            yield
        except BaseException as error:
            self._tracing.fail(span, code_of(error))
            raise
        finally:
            self._tracing.end(span, self._now_ns())

    def end(self, error: BaseException | None = None) -> None:
        """The request is answered, with this error if there is one."""
        now_ns, code = self._now_ns(), "" if error is None else code_of(error)
        for open in (self._queue, self._decide, *self._commits, self._replicate):
            if open is not None:
                if code:
                    self._tracing.fail(open, code)
                self._tracing.end(open, now_ns)
        self._queue = self._decide = self._replicate = None
        self._commits.clear()
        if code:
            self._tracing.fail(self.span, code)
            if isinstance(error, ShoalError):
                self.span.set_attribute("shoal.written", error.written)
        self._tracing.end(self.span, now_ns)


def code_of(error: BaseException) -> str:
    """The code of an error of Shoal's, or the class of another one."""
    return error.code if isinstance(error, ShoalError) else type(error).__qualname__
