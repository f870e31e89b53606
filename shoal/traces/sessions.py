"""Sessions whose requests are spans, and the spans of a request's stages in a node.

Laws:
- A request has one span at each side. What begins without a task and goes on with one keeps its span.
- A caller that does not record its trace decides that for the node, too: then there is no span at either side.
- Of several contexts the nearest counts: that of the frame, that of the program, that of the handshake.
- A span changes nothing of a request: not its answer, its error or its order.
- A stage that has not ended with the request ends with it, but for the acknowledgements of peers, which have their own time.
- What a request waits for is within its decision, if it is a write that is not made yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Literal

from shoal.errors import ShoalError
from shoal.logs.lines import request_id
from shoal.protocol.requests import AnyReply, AnyRequest, Batch, Durability, ObjectRead, ObjectWrite, R, Read, Request, space_of
from shoal.protocol.session import Prompt, Session, Told, Wrapper
from shoal.protocol.tracing import NOT_RECORDED, Carried, Commit, carried_in, carrying, stages
from shoal.traces.provider import Common, Tracing, tracing
from shoal.traces.spans import ATTRIBUTE_CHARS_MAX, COMMIT, DECIDE, LINKS_MAX, PEER, QUEUE, REPLICATE

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


Face = Literal["client", "store", "node"]
"""Where a session is: at a client of nodes, at an embedded store, or at a node."""


class _Arrival:
    """A frame of a session that has arrived at a node."""

    __slots__ = ("at_ns", "carried", "is_decided", "opened")

    def __init__(self, at_ns: int, carried: Carried | None) -> None:
        self.at_ns = at_ns
        self.carried = carried
        self.is_decided = False
        self.opened: RequestSpan | None = None


_LEFT_OUT = _Arrival(0, None)
_LEFT_OUT.is_decided = True
"""Any frame whose trace is not recorded."""

_arrival: ContextVar[_Arrival | None] = ContextVar("shoal_arrival", default=None)
_greeting: ContextVar[Carried | None] = ContextVar("shoal_greeting", default=None)


def arrived(trace: str) -> Token[Any] | None:
    """A frame has arrived that carries this; the request that begins from here on, or in a task that begins here, is its own.

    Give what this returns to `left`.
    """
    known = tracing()
    if known is None:
        return None
    carried = carried_in(trace)
    if carried is not None and not carried.is_sampled:
        return _arrival.set(_LEFT_OUT)
    return _arrival.set(_Arrival(known.now_ns(), carried))


def left(token: Token[Any] | None) -> None:
    """The frame has begun."""
    if token is not None:
        _arrival.reset(token)


@contextmanager
def greeted(carried: Carried | None) -> Iterator[None]:
    """Within, sessions are opened whose requests belong to this trace, unless they have a nearer one."""
    token = _greeting.set(carried)
    try:
        yield
    finally:
        _greeting.reset(token)


class Traced(Wrapper):
    """A session whose requests are spans, while a provider of traces is set."""

    __slots__ = ("_face", "_greeting")

    def __init__(self, session: Session, face: Face) -> None:
        super().__init__(session)
        self._face = face
        self._greeting = _greeting.get()

    def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Coroutine[Any, Any, R]:
        """Answer `request` (`Session.call`)."""
        known = tracing()
        if known is None:
            return self._session.call(request, key=key, durability=durability, stale=stale)
        is_taken = self._face == "store" and self._greeting is None
        if is_taken and known.leaves_out():
            return self._session.call(request, key=key, durability=durability, stale=stale)
        if self._face == "client":
            if known.leaves_out():
                if carrying.get() is None:  # The frame says that it is not recorded (`shoal.protocol.tracing.Untold`).
                    return self._session.call(request, key=key, durability=durability, stale=stale)
                return self._sent_unrecorded(request, key, durability, stale)
            return self._sent(known, request, key, durability, stale)
        opened = self._opened(known, request, durability, is_taken=is_taken)
        if opened is None:
            return self._session.call(request, key=key, durability=durability, stale=stale)
        return self._answered(opened, request, key, durability, stale)

    async def _sent_unrecorded(self, request: Request[R], key: str | None, durability: Durability, stale: bool) -> R:
        token = carrying.set(NOT_RECORDED)
        try:
            return await self._session.call(request, key=key, durability=durability, stale=stale)
        finally:
            carrying.reset(token)

    async def _sent(self, known: Tracing, request: Request[R], key: str | None, durability: Durability, stale: bool) -> R:
        parent = None if known.here().is_valid else known.root()
        span = _span(known, request, durability, "client", parent, known.now_ns())
        opened = RequestSpan(known, span) if span.is_recording() else None
        carried = known.carried(span.get_span_context())
        token = carrying.set(carried)
        try:
            reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        except BaseException as error:
            if opened is not None:
                opened.end(error)
            raise
        finally:
            carrying.reset(token)
        if opened is not None:
            opened.end()
        return reply

    async def _answered(
        self, opened: RequestSpan, request: Request[R], key: str | None, durability: Durability, stale: bool
    ) -> R:
        token = stages.set(opened)
        try:
            reply = await self._session.call(request, key=key, durability=durability, stale=stale)
        except BaseException as error:
            opened.end(error)
            raise
        finally:
            stages.reset(token)
        opened.end()
        return reply

    def _opened(self, known: Tracing, request: Any, durability: Durability, *, is_taken: bool = False) -> RequestSpan | None:
        """The span of a request that begins here; None if it is not recorded. `is_taken`: it was found that it may be."""
        arrival = _arrival.get()
        if arrival is None:
            carried = None
        elif arrival.is_decided:
            return arrival.opened
        else:
            carried = arrival.carried
        if carried is None and not is_taken and self._greeting is None and known.leaves_out():
            if arrival is not None:
                arrival.is_decided = True
            return None
        at_ns, parent, kind = known.now_ns(), None, "internal"
        if carried is not None:
            parent, kind = known.remote(carried), "server"
        elif (here := known.here()).is_valid:
            if not here.trace_flags & 1:
                return None
        elif self._greeting is not None:
            parent, kind = self._of(known, self._greeting)
        else:
            parent, kind = known.root(), "internal" if self._face == "store" else "server"
        opened = None
        if kind:
            span = _span(known, request, durability, kind, parent, at_ns if arrival is None else arrival.at_ns)
            if span.is_recording():
                began_ns = at_ns if arrival is None else arrival.at_ns
                opened = RequestSpan(known, span, arrived_ns=began_ns, decides=not isinstance(request, Read))
        if arrival is not None:
            arrival.is_decided, arrival.opened = True, opened
        return opened

    def _of(self, known: Tracing, carried: Carried) -> tuple[Context | None, str]:
        return (known.remote(carried), "server") if carried.is_sampled else (None, "")


class PromptlyTraced(Traced):
    """The same, of a session that is `Prompt`."""

    __slots__ = ("_prompt",)

    def __init__(self, session: Prompt, face: Face) -> None:
        super().__init__(session, face)
        self._prompt = session

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        """Begin `request`, and call `told` with its answer, now or later (`Prompt.begin`)."""
        known = tracing()
        opened = None if known is None else self._opened(known, request, durability)
        if opened is None:
            return self._prompt.begin(request, told, key=key, durability=durability, stale=stale)

        def answered(answer: AnyReply | ShoalError) -> None:
            opened.end(answer if isinstance(answer, ShoalError) else None)
            told(answer)

        token = stages.set(opened)
        try:
            return self._prompt.begin(request, answered, key=key, durability=durability, stale=stale)
        except BaseException as error:
            opened.end(error)
            raise
        finally:
            stages.reset(token)


def untraced(session: Session) -> Session:
    """The session inside one that is traced, for requests of which it is known that they are not recorded."""
    return session._session if isinstance(session, Traced) else session


def traced(session: Session, face: Face) -> Traced:
    """The session, whose requests are spans while a provider of traces is set."""
    return PromptlyTraced(session, face) if isinstance(session, Prompt) else Traced(session, face)


def _span(known: Tracing, request: Any, durability: Durability, kind: str, parent: Context | None, at_ns: int) -> Span:
    """The span of a request; most are not recorded, so what all of a kind have in common is made once."""
    common = known.of_kinds.get((type(request), durability, kind))
    if common is None:
        common = known.of_kinds[type(request), durability, kind] = _common(type(request), durability, kind)
    span = known.span_of(common, parent, at_ns)
    if span.is_recording():
        if kind == "server" and (id := request_id()):
            span.set_attribute("shoal.request_id", id[:ATTRIBUTE_CHARS_MAX])
        if known.shows("shoal.object"):
            span.set_attributes(known.kept(_names(request)))
    return span


def _common(request: type[Any], durability: Durability, kind: str) -> Common:
    tag = str(request.__struct_config__.tag)
    attributes = {"db.system.name": "shoal", "db.operation.name": tag}
    if not issubclass(request, Read):
        attributes["shoal.durability"] = durability
    return Common(f"shoal {tag}", kind, attributes)


def _names(request: Any) -> dict[str, str]:
    one = request.writes[0] if isinstance(request, Batch) and request.writes else request
    named = str(getattr(one, one.__struct_fields__[1])) if isinstance(one, ObjectWrite | ObjectRead) else ""
    return {"db.namespace": space_of(request) or "", "shoal.object": named}
