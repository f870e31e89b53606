"""A thread's step log, with the intents, ends and results of its steps; and a thread's status.

A thread's step log: the intents, ends and results of its steps.

A step is an effect that must not be repeated by accident. Its author writes an
intent before the effect, and a result or an error after it. If a step has an intent and
no end, the effect may have happened or not, and only the outside world can tell.

Laws:
- A step's state is a function of sets that only grow: intents (one per attempt),
  ends (one per attempt and kind), humans' decisions (one per request), results (one
  per content), and the last progress of each attempt. If several claim one
  place, the least (dot, nth) counts; for progress, the greatest position.
- The intent with the least (dot, nth) defines the step; the result with the
  least (dot, nth) is its result. Other results stay, as conflicts.
- A result settles the step, whatever else was recorded: the effect has happened.
  Without a result the last decision counts, by position. Without a decision an attempt that
  has no end, or only the end `unkept`, leaves the step open.
- An intent is not safe merely because this replica shows the step as free: the
  node checks the states at a quorum before it writes one, and again after.

Rows (within the thread's):
    S k key                            the entry: its intents, ends, results and progress
    S v keylength₂ key digest₃₂        arguments or a result, under their SHA-256
    S t position₃₄                     key: every step, by the position of its first intent
    S o position₃₄                     key: the same, of those that are open

A thread's status: running, paused, waiting, done or failed; who set it, when and why.

Laws:
- Of all moves the one with the greatest position counts. Positions are a causal
  order, so a move beats every move that its author had seen. Of concurrent moves the
  greatest HLC wins, and all of them stay, in order.
- Of the moves with one key (a request that was sent to two nodes) the one with the least
  (dot, nth) counts, on every replica.

Rows (within the thread's):
    U p position₃₄                     a move: msgpack [status, reason, by, wall_ms, key]
    U k key                            position₃₄: the move of this key
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from shoal.crdt.applier import NOTHING, Applier, Appliers, Blobs, Effects, bare, check_content, intact
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds import Kind

ENTRY, CONTENT, ORDER, OPEN = b"Sk", b"Sv", b"St", b"So"
_HLC_BYTES = 8

State = Literal["open", "done", "failed", "ready", "abandoned"]
"""`ready`: all attempts were withdrawn or released by a decision, and it may be begun again."""

EndKind = Literal["error", "withdrawn", "taken", "unkept"]
"""`withdrawn`: nothing was called. `taken`: another attempt took over.

`unkept`: the effect has happened, but its result could not be stored."""

Decided = Literal["retry", "abandon"]


class Intend(msgspec.Struct, array_like=True, frozen=True, tag="step-intent"):
    """A mutation: an attempt is about to be made."""

    step: str  # The step's key.
    name: str
    attempt: str
    digest: bytes = b""  # SHA-256 of the arguments, which travel beside it; empty: none were recorded.
    holder: str = ""
    parent: str = ""  # Key of the step within which it was begun.
    compensation: str = ""  # Name of the effect that undoes it.
    takes: tuple[str, ...] = ()  # Open attempts that this one replaces.


class Progress(msgspec.Struct, array_like=True, frozen=True, tag="step-progress"):
    """A mutation: how far an attempt has come."""

    step: str
    attempt: str
    progress: bytes


class End(msgspec.Struct, array_like=True, frozen=True, tag="step-end"):
    """A mutation: an attempt ended without a result."""

    step: str
    attempt: str
    kind: EndKind
    detail: bytes = b""  # Of an error: a packed value.


class Decide(msgspec.Struct, array_like=True, frozen=True, tag="step-decision"):
    """A mutation: a human's decision on a step that has no result."""

    step: str
    attempts: tuple[str, ...]  # The attempts so far. They no longer count as open.
    kind: Decided
    by: str = ""
    reason: str = ""
    key: str | None = None  # Of the request.


class Result(msgspec.Struct, array_like=True, frozen=True, tag="step-result"):
    """A mutation: the effect's result. The value travels beside it."""

    step: str
    attempt: str  # Empty if a human supplied the result.
    digest: bytes  # SHA-256 of the value.
    by: str = ""


Change = Intend | Progress | End | Decide | Result


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """An intent, as it is stored."""

    id: str
    position: bytes
    wall_ms: int
    name: str
    digest: bytes
    holder: str
    parent: str
    compensation: str


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """An end of an attempt, as it is stored."""

    attempt: str
    kind: EndKind
    position: bytes
    wall_ms: int
    detail: bytes


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """A decision, as it is stored."""

    kind: Decided
    attempts: tuple[str, ...]
    position: bytes
    wall_ms: int
    by: str
    reason: str
    key: str | None


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """A result, as it is stored; the value is in a row of its own."""

    digest: bytes
    position: bytes
    wall_ms: int
    attempt: str
    by: str


class Reached(msgspec.Struct, array_like=True, frozen=True):
    """The last progress of an attempt, as it is stored."""

    attempt: str
    position: bytes
    progress: bytes


class StepEntry(msgspec.Struct, array_like=True, frozen=True):
    """All that is known of a step. Each list is in the order of (dot, nth), except progress, which is by attempt."""

    attempts: list[Attempt] = []
    ends: list[Ended] = []
    results: list[Outcome] = []
    progress: list[Reached] = []
    decisions: list[Decision] = []

    @property
    def first(self) -> Attempt:
        """The intent that defines the step. There must be one."""
        return self.attempts[0]

    @property
    def state(self) -> State:
        """The step's state, by the laws above."""
        if self.results:
            return "done"
        decided = max(self.decisions, key=_position, default=None)
        if decided is not None and decided.kind == "abandon":
            return "abandoned"
        if self.open_attempts:
            return "open"
        return "failed" if self.failures else "ready"

    @property
    def open_attempts(self) -> list[Attempt]:
        """The attempts that have no known end or result, and on which no decision was made."""
        ended = {end.attempt for end in self.ends if end.kind != "unkept"} | {result.attempt for result in self.results}
        ended.update(*(decision.attempts for decision in self.decisions))
        return [attempt for attempt in self.attempts if attempt.id not in ended]

    @property
    def failures(self) -> list[Ended]:
        """The errors since the last decision to retry, the latest last."""
        freed = max((decision.position for decision in self.decisions if decision.kind == "retry"), default=b"")
        errors = [end for end in self.ends if end.kind == "error" and end.position > freed]
        return sorted(errors, key=_position)

    def holds(self, attempt: str) -> bool:
        """Whether the attempt is known."""
        return any(known.id == attempt for known in self.attempts)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StepEntry)


def apply_step(rows: Rows, stamp: Stamp, change: Change, content: bytes = b"") -> StepEntry:
    """Apply a change, and return the step's new entry. `content` are the arguments or the result that travel beside it."""
    before = find(rows, change.step)
    entry = _joined(before or StepEntry(), stamp, change)
    if isinstance(change, Intend | Result) and change.digest:
        rows.put(_content_row(change.step, change.digest), content)
    rows.put(ENTRY + change.step.encode(), _encoder.encode(entry))
    _index(rows, change.step, before, entry)
    return entry


def _joined(entry: StepEntry, stamp: Stamp, change: Change) -> StepEntry:
    position, wall_ms = stamp.pack_position(), stamp.wall_ms
    match change:
        case Intend():
            attempt = Attempt(
                change.attempt,
                position,
                wall_ms,
                change.name,
                change.digest,
                change.holder,
                change.parent,
                change.compensation,
            )
            ends = entry.ends
            for taken in change.takes:
                ends = _with_end(ends, Ended(taken, "taken", position, wall_ms, b""))
            return msgspec.structs.replace(entry, attempts=_with_attempt(entry.attempts, attempt), ends=ends)
        case Progress():
            reached = Reached(change.attempt, position, change.progress)
            return msgspec.structs.replace(entry, progress=_with_progress(entry.progress, reached))
        case End():
            ended = Ended(change.attempt, change.kind, position, wall_ms, change.detail)
            return msgspec.structs.replace(entry, ends=_with_end(entry.ends, ended))
        case Decide():
            decision = Decision(
                change.kind, change.attempts, position, wall_ms, by=change.by, reason=change.reason, key=change.key
            )
            return msgspec.structs.replace(entry, decisions=_with_decision(entry.decisions, decision))
        case Result():
            result = Outcome(change.digest, position, wall_ms, change.attempt, change.by)
            return msgspec.structs.replace(entry, results=_with_result(entry.results, result))


def _with_attempt(attempts: list[Attempt], new: Attempt) -> list[Attempt]:
    same = [new, *(attempt for attempt in attempts if attempt.id == new.id)]
    others = [attempt for attempt in attempts if attempt.id != new.id]
    return sorted([*others, min(same, key=_rank)], key=_rank)


def _with_end(ends: list[Ended], new: Ended) -> list[Ended]:
    place = new.attempt, new.kind
    same = [new, *(end for end in ends if (end.attempt, end.kind) == place)]
    others = [end for end in ends if (end.attempt, end.kind) != place]
    # One operation can end several attempts: their names tell those of one rank apart.
    return sorted([*others, min(same, key=_rank)], key=lambda end: (_rank(end), end.attempt, end.kind))


def _with_decision(decisions: list[Decision], new: Decision) -> list[Decision]:
    same = [new, *(decision for decision in decisions if decision.key is not None and decision.key == new.key)]
    others = [decision for decision in decisions if decision not in same]
    return sorted([*others, min(same, key=_rank)], key=_rank)


def _with_result(results: list[Outcome], new: Outcome) -> list[Outcome]:
    same = [new, *(result for result in results if result.digest == new.digest)]
    others = [result for result in results if result.digest != new.digest]
    return sorted([*others, min(same, key=_rank)], key=_rank)


def _with_progress(progress: list[Reached], new: Reached) -> list[Reached]:
    same = [new, *(reached for reached in progress if reached.attempt == new.attempt)]
    others = [reached for reached in progress if reached.attempt != new.attempt]
    return sorted([*others, max(same, key=_position)], key=lambda reached: reached.attempt)


def _rank(claim: Attempt | Ended | Decision | Outcome) -> bytes:
    """Dot and nth: they decide between claims to one place. The HLC does not, because the clocks decide its order."""
    return claim.position[_HLC_BYTES:]


def _position(claim: Ended | Decision | Reached) -> bytes:
    return claim.position


def _index(rows: Rows, step: str, before: StepEntry | None, entry: StepEntry) -> None:
    if before is not None and before.attempts:
        rows.delete(ORDER + before.first.position)
        rows.delete(OPEN + before.first.position)
    if entry.attempts:
        rows.put(ORDER + entry.first.position, step.encode())
        if entry.state == "open":
            rows.put(OPEN + entry.first.position, step.encode())


def find(rows: Rows, step: str) -> StepEntry | None:
    """The step's entry; None if the step is not known.

    Raises:
        StoreCorrupt: it cannot be decoded.
    """
    stored = rows.get(ENTRY + step.encode())
    if stored is None:
        return None
    try:
        return _decoder.decode(stored)
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"step {step!r} cannot be decoded ({error}). Run `shoal verify`.") from None


def content(rows: Rows, step: str, digest: bytes) -> bytes:
    """The packed arguments or result with this digest.

    Raises:
        StoreCorrupt: the row that must hold it is not there.
    """
    stored = rows.get(_content_row(step, digest))
    if stored is None:
        raise StoreCorrupt(f"the value {digest.hex()} of step {step!r} is missing from the step log. Run `shoal verify`.")
    return stored


def listing(rows: Rows, *, only_open: bool, after: bytes = b"") -> Iterator[tuple[bytes, str]]:
    """Position and key of each step, in the order of first intents; `after` is a position, exclusive."""
    table = OPEN if only_open else ORDER
    for row, step in rows.scan(table, after=table + after if after else None):
        yield row[len(table) :], step.decode()


def oldest_open(rows: Rows, *, since: bytes = b"") -> bytes | None:
    """The position of the oldest open step; None: no step is open.

    `since`: none is open below this position. Rows of the steps that were settled there are not passed again.
    """
    after = OPEN + since[:-1] if since else None
    return next((row[len(OPEN) :] for row, _ in rows.scan(OPEN, after=after, limit=1)), None)


def first_of(rows: Rows, step: str) -> bytes | None:
    """The position of a step's first attempt; None if it has none.

    Raises:
        StoreCorrupt: the step cannot be decoded.
    """
    entry = find(rows, step)
    return None if entry is None or not entry.attempts else entry.first.position


def _content_row(step: str, digest: bytes) -> bytes:
    key = step.encode()
    return CONTENT + len(key).to_bytes(2, "big") + key + digest


MOVE, KEY = b"Up", b"Uk"

Status = Literal["running", "paused", "waiting", "done", "failed"]


class Move(msgspec.Struct, array_like=True, frozen=True, tag="status"):
    """The mutation: sets the status."""

    status: Status
    reason: str = ""
    by: str = ""
    key: str | None = None


class StatusRecord(msgspec.Struct, array_like=True, frozen=True):
    """A move, as it is stored."""

    status: Status
    reason: str = ""
    by: str = ""
    wall_ms: int = 0
    key: str | None = None


_status_decoder = msgspec.msgpack.Decoder(StatusRecord)


def apply_status(rows: Rows, stamp: Stamp, move: Move) -> None:
    """Store the move, unless its key was claimed by a lesser (dot, nth)."""
    position = stamp.pack_position()
    if move.key is not None:
        row = KEY + move.key.encode()
        claimed = rows.get(row)
        if claimed is not None:
            if _status_rank(claimed) <= _status_rank(position):
                return
            rows.delete(MOVE + claimed)
        rows.put(row, position)
    rows.put(MOVE + position, _encoder.encode(StatusRecord(move.status, move.reason, move.by, stamp.wall_ms, move.key)))


def _status_rank(position: bytes) -> bytes:
    return position[_HLC_BYTES:]


def current(rows: Rows) -> StatusRecord | None:
    """The move that counts; None if none was ever made, and the thread is running.

    Raises:
        StoreCorrupt: the row cannot be decoded.
    """
    return next((decode(stored) for _, stored in rows.scan(MOVE, reverse=True, limit=1)), None)


def decode(stored: bytes) -> StatusRecord:
    """A stored move.

    Raises:
        StoreCorrupt: the row cannot be decoded.
    """
    try:
        return _status_decoder.decode(stored)
    except ValueError as error:
        raise StoreCorrupt(f"a thread's status cannot be decoded ({error}). Run `shoal verify`.") from None


def is_held(standing: StatusRecord | None) -> bool:
    """Whether the status makes steps wait: paused, or waiting."""
    return standing is not None and standing.status in ("paused", "waiting")


def _apply(rows: Rows, stamp: Stamp, change: Intend | Result, attached: Blobs) -> StepEntry:
    return apply_step(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: Intend | Result, attached: Blobs) -> Blobs:
    if change.digest:
        check_content(attached, change.digest, "its value does not match its hash")
    return attached


def _attached_of(rows: Rows, _stamp: Stamp, change: Intend | Result) -> Blobs:
    if not change.digest:
        return NOTHING
    found = content(rows, change.step, change.digest)
    return intact(found, change.digest, f"value {change.digest.hex()} of step {change.step!r}")


_LISTS = Effects(lists=True)
_WITH_CONTENT = Applier(Kind.THREAD, _apply, _check, _attached_of, effects=_LISTS)

APPLIERS: Appliers = {
    Intend: _WITH_CONTENT,
    Result: _WITH_CONTENT,
    Progress: bare(Kind.THREAD, apply_step),
    End: bare(Kind.THREAD, apply_step, effects=_LISTS),
    Decide: bare(Kind.THREAD, apply_step, effects=_LISTS),
    Move: bare(Kind.THREAD, apply_status, effects=_LISTS),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    current(rows)
    for _, step in listing(rows, only_open=False):
        find(rows, step)
