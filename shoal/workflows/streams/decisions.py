"""The decision on a request to a stream, by the rules of the Durable Streams protocol.

A command decides on the stream's state, and says what is answered and what is appended. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from shoal.errors import Conflict, Forbidden, InvalidInput, InvalidValue, NotFound, Overloaded, ShoalError
from shoal.records import NamedTuple
from shoal.workflows.streams.record import BEGINNING, Fork, Offset, Producer, State, media_type

BINARY = "application/octet-stream"
_PRODUCER_KEPT_MS = 3_600_000  # One that was silent for longer, longer than any retry takes, makes room for another.


class StreamGone(NotFound):
    """The stream was deleted, or has expired, and only its forks read it."""

    code = "stream-gone"
    status = 410


class Moment(NamedTuple):
    """When a command is decided, and what would be written."""

    now_ms: int
    touched_ms: int  # When the stream was read last.
    record: int  # Its index.
    from_ms: int


@dataclass(frozen=True)
class Outcome:
    """The answer to a command. With a `state` something is written, and the answer is given once that is committed."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    state: State | None = None
    entry: bytes | None = None  # What is appended.
    data: int | None = None  # The position to answer as `Stream-Next-Offset`.
    error: ShoalError | None = None
    released: Fork | None = None  # The source that is not read by this stream any more.
    created: bool = False
    mark: str = ""  # Of the fork that may read the stream now.


class Command(Protocol):
    """A request to one stream."""

    alone: ClassVar[bool]  # Whether it needs a record of its own.

    @property
    def stream(self) -> str:
        """Its name."""
        ...

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state."""
        ...


def refused(error: ShoalError, *, data: int | None = None, **headers: str) -> Outcome:
    """The outcome of a command that changes nothing."""
    return Outcome(error.status, {name.replace("_", "-"): text for name, text in headers.items()}, data=data, error=error)


def absence(state: State | None, now_ms: int, touched_ms: int, stream: str = "") -> NotFound | None:
    """Why a stream cannot be used; None if it can."""
    if state is None or state.deleted:
        return NotFound(f"there is no stream {stream!r}. Nothing was written. Create it with PUT.")
    ends_ms = state.ends_ms(touched_ms)
    is_over = ends_ms is not None and now_ms >= ends_ms
    if state.gone or (is_over and state.forks):
        return StreamGone(f"stream {stream!r} was deleted; only its forks can be read. Nothing was written.")
    if is_over:
        return NotFound(f"stream {stream!r} has expired. Nothing was written. Create it again with PUT.")
    return None


@dataclass(frozen=True)
class ProducerHeaders:
    """The headers of an idempotent producer."""

    id: str
    epoch: int
    sequence: int


@dataclass(frozen=True)
class Create:
    """Create a stream, or find that it is as it should be."""

    alone: ClassVar[bool] = True
    stream: str
    content_type: str | None
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    body: bytes = b""
    fork: Fork | None = None
    fork_is_named: bool = False  # Whether the request says where the source is forked.
    prefix: bytes | None = None  # Copied from the append that is forked in the middle.

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        absent = absence(state, moment.now_ms, moment.touched_ms, self.stream)
        if isinstance(absent, StreamGone):
            return refused(Conflict(f"{absent.message} It cannot be created again before they are deleted."))
        if absent is None and state is not None:
            return self._found(state)
        content_type = self.content_type or BINARY
        try:
            entry = _entry(media_type(content_type), self.body, is_new=True)
        except InvalidValue as error:
            return refused(error)
        parts = [part for part in (self.prefix, entry) if part]
        joined = (b"," if media_type(content_type) == "application/json" else b"").join(parts) if parts else None
        tail = BEGINNING if self.fork is None else self.fork.at
        new = State(
            incarnation=moment.record,
            content_type=content_type,
            begin=Offset(tail.data, moment.from_ms, moment.record),
            tail=tail,
            written_ms=moment.now_ms,
            ttl_s=self.ttl_s,
            expires_ms=self.expires_ms,
            closed=self.closed,
            fork=self.fork,
        )
        released = None if state is None or state.deleted else state.fork
        return Outcome(201, _told(new), new, joined, tail.data + (joined is not None), released=released, created=True)

    def _found(self, state: State) -> Outcome:
        wanted = self.content_type if self.fork is None or self.content_type else state.content_type
        differs = [
            name
            for name, same in (
                ("content type", media_type(wanted or BINARY) == media_type(state.content_type)),
                ("TTL", self.ttl_s == state.ttl_s),
                ("expiry", self.expires_ms == state.expires_ms),
                ("closure", self.closed == state.closed),
                ("source", self._is_forked_as(state)),
            )
            if not same
        ]
        if differs:
            return refused(
                Conflict(f"stream {self.stream!r} exists with another {' and '.join(differs)}. Nothing was written.")
            )
        return Outcome(200, _told(state), data=state.tail.data)

    def _is_forked_as(self, state: State) -> bool:
        if self.fork is None or state.fork is None:
            return self.fork is state.fork
        same_place = not self.fork_is_named or (self.fork.at.data, self.fork.sub) == (state.fork.at.data, state.fork.sub)
        return self.fork.source == state.fork.source and same_place


@dataclass(frozen=True)
class Append:
    """Append to a stream, close it, or both."""

    alone: ClassVar[bool] = False
    stream: str
    content_type: str | None
    body: bytes
    closes: bool = False
    sequence: str | None = None
    producer: ProducerHeaders | None = None
    producers_max: int = 256

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        absent = absence(state, moment.now_ms, moment.touched_ms, self.stream)
        if absent is not None or state is None:
            return refused(absent or NotFound(self.stream))
        if self.body:
            mismatch = self._mismatch(state)
            if mismatch is not None:
                return refused(mismatch)
        elif not self.closes:
            return refused(InvalidInput("the body is empty. Nothing was written. Send data, or `Stream-Closed: true`."))
        known = self._known(state)
        if known is not None:
            return known
        if state.closed:
            return self._closed(state)
        return self._accepted(state, moment)

    def _mismatch(self, state: State) -> ShoalError | None:
        if self.content_type is None:
            return InvalidInput("an append names its Content-Type. Nothing was written.")
        if media_type(self.content_type) != media_type(state.content_type):
            return Conflict(
                f"the body is {self.content_type[:80]!r}, and stream {self.stream!r} is {state.content_type!r}. "
                "Nothing was written."
            )
        return None

    def _known(self, state: State) -> Outcome | None:
        """The outcome if it follows from what is known of the producer."""
        mark = self.producer
        if mark is None:
            return None
        known = state.producers.get(mark.id)
        if known is None or mark.epoch > known.epoch:
            if mark.sequence == 0:
                return None
            if known is None:
                return self._gap(state, 0, mark)
            return refused(InvalidInput("a new Producer-Epoch begins with Producer-Seq 0. Nothing was written."))
        if mark.epoch < known.epoch:
            return refused(
                Forbidden(f"producer {mark.id!r} has epoch {known.epoch} by now. Nothing was written. Begin a greater epoch."),
                Producer_Epoch=str(known.epoch),
            )
        if mark.sequence > known.sequence:
            return None if mark.sequence == known.sequence + 1 else self._gap(state, known.sequence + 1, mark)
        if state.closed and self.closes and state.closed_by != (mark.id, mark.epoch, mark.sequence):
            return None  # It closes again, as another request did.
        return Outcome(204, {**_told(state), **_accepted_of(mark.epoch, known.sequence)}, data=state.tail.data)

    def _gap(self, state: State, expected: int, mark: ProducerHeaders) -> Outcome:
        if state.closed:
            return self._closed(state)
        return refused(
            Conflict(f"producer {mark.id!r} is at sequence {expected}, not {mark.sequence}. Nothing was written."),
            Producer_Expected_Seq=str(expected),
            Producer_Received_Seq=str(mark.sequence),
        )

    def _closed(self, state: State) -> Outcome:
        if self.closes and not self.body and self.producer is None:
            return Outcome(204, _told(state), data=state.tail.data)
        error = Conflict(f"stream {self.stream!r} is closed. Nothing was written.")
        return refused(error, data=state.tail.data, Stream_Closed="true")

    def _accepted(self, state: State, moment: Moment) -> Outcome:
        if self.sequence is not None and state.sequence is not None and self.sequence.encode() <= state.sequence.encode():
            return refused(
                Conflict(f"Stream-Seq {self.sequence[:80]!r} is not above {state.sequence[:80]!r}. Nothing was written.")
            )
        try:
            entry = _entry(media_type(state.content_type), self.body, is_new=False) if self.body else None
            producers = self._producers(state, moment.now_ms)
        except (InvalidValue, Overloaded) as error:
            return refused(error)
        mark = self.producer
        after = replace(
            state,
            written_ms=max(state.written_ms, moment.now_ms),  # A node's clock may be behind that of the one before.
            closed=self.closes,
            closed_by=(mark.id, mark.epoch, mark.sequence) if self.closes and mark is not None else None,
            sequence=state.sequence if self.sequence is None else self.sequence,
            producers=producers,
        )
        echoed = {} if mark is None else _accepted_of(mark.epoch, mark.sequence)
        status = 200 if mark is not None and entry is not None else 204
        return Outcome(status, {**_told(after), **echoed}, after, entry, state.tail.data + (entry is not None))

    def _producers(self, state: State, now_ms: int) -> dict[str, Producer]:
        mark = self.producer
        if mark is None:
            return state.producers
        producers = {**state.producers, mark.id: Producer(mark.epoch, mark.sequence, now_ms)}
        if len(producers) > self.producers_max:
            oldest = min(producers, key=lambda id: producers[id].used_ms)
            if now_ms - producers[oldest].used_ms < _PRODUCER_KEPT_MS:
                raise Overloaded(
                    f"stream {self.stream!r} has {self.producers_max} producers of the last hour. "
                    "Nothing was written. Use the id of an earlier producer, with a greater epoch.",
                    retry_after_s=60.0,
                )
            del producers[oldest]
        return producers


@dataclass(frozen=True)
class Delete:
    """Delete a stream. If forks read it, it is kept for them."""

    alone: ClassVar[bool] = True
    stream: str
    expired_only: bool = False  # Only if it has expired.

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        absent = absence(state, moment.now_ms, moment.touched_ms, self.stream)
        if self.expired_only:
            if absent is None or state is None or state.deleted or state.gone:
                return Outcome(204)
        elif absent is not None or state is None:
            return refused(absent or NotFound(self.stream))
        return _ended(state) if not state.forks else Outcome(204, state=replace(state, gone=True))


@dataclass(frozen=True)
class Hold:
    """Note that a fork is about to read the stream. Its mark is the index of the record that says so: no two are equal."""

    alone: ClassVar[bool] = True
    stream: str
    incarnation: int  # Which is to be forked.
    forks_max: int = 1024

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        absent = absence(state, moment.now_ms, moment.touched_ms, self.stream)
        if isinstance(absent, StreamGone):
            return refused(Conflict(absent.message))
        if absent is not None or state is None:
            return refused(absent or NotFound(self.stream))
        if state.incarnation != self.incarnation:
            return refused(Conflict(f"stream {self.stream!r} was created again meanwhile. Nothing was written. Fork it again."))
        if len(state.forks) >= self.forks_max:
            return refused(Overloaded(f"stream {self.stream!r} has {self.forks_max} forks. Nothing was written."))
        mark = str(moment.record)
        return Outcome(204, state=replace(state, forks=[*state.forks, mark]), mark=mark)


@dataclass(frozen=True)
class LetGo:
    """Note that a fork reads the stream no more; a stream that was deleted ends with its last fork."""

    alone: ClassVar[bool] = True
    stream: str
    mark: str

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        if state is None or state.deleted or self.mark not in state.forks:
            return Outcome(204)
        left = [mark for mark in state.forks if mark != self.mark]
        after = replace(state, forks=left)
        ends_ms = state.ends_ms(moment.touched_ms)
        is_over = state.gone or (ends_ms is not None and moment.now_ms >= ends_ms)
        return _ended(after) if is_over and not left else Outcome(204, state=after)


@dataclass(frozen=True)
class Settle:
    """Let a holder begin: what the one before it left without a note is committed by that."""

    alone: ClassVar[bool] = False
    stream: str

    def decide(self, state: State | None, moment: Moment) -> Outcome:
        """The outcome, if the stream is in this state (`Command.decide`)."""
        return Outcome(204)


def _ended(state: State) -> Outcome:
    return Outcome(204, state=replace(state, gone=False, deleted=True, producers={}), released=state.fork)


def _told(state: State) -> dict[str, str]:
    closed = {"Stream-Closed": "true"} if state.closed else {}
    return {"Content-Type": state.content_type, **closed}


def _accepted_of(epoch: int, sequence: int) -> dict[str, str]:
    return {"Producer-Epoch": str(epoch), "Producer-Seq": str(sequence)}


def _entry(kind: str, body: bytes, *, is_new: bool) -> bytes | None:
    """The records to store of a body; None if it is an empty array, with which a stream may be created.

    Raises:
        InvalidValue: it is not the JSON that it should be.
    """
    if kind != "application/json" or not body:
        return body or None
    found = messages(body)
    if not found and not is_new:
        raise InvalidValue("the body is an empty array. Nothing was written. Send one message or more.")
    return b",".join(found) or None


def messages(body: bytes) -> list[bytes]:
    """The messages in a body of JSON: the elements of an array, or the one value that it is.

    Raises:
        InvalidValue: it is not JSON.
    """
    try:
        value = msgspec.json.decode(body)  # `Raw` alone would not look into strings.
        return (
            [bytes(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw])]
            if isinstance(value, list)
            else [body.strip()]
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise InvalidValue(f"the body is not valid JSON: {reason}. Nothing was written.") from None


def shown(entries: list[bytes], *, is_json: bool) -> bytes:
    """Appends as a reader gets them."""
    return b"[" + b",".join(entries) + b"]" if is_json else b"".join(entries)
