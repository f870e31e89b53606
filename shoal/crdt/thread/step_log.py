"""A thread's ledger: the intents, ends and results of its steps.

A step is an effect that must not be repeated by accident. Whoever is about to cause
it writes an intent first, and a result or an error after; what has an intent and
no end may have happened, or not, and only the outside world can tell.

Laws:
- A step's state is a function of sets that only grow: intents (one per attempt),
  ends (one per attempt and kind), humans' decisions (one per request), results (one
  per content), and the last progress of each attempt. Of several that claim one
  place the least (dot, nth) counts; of progress the greatest position.
- The intent with the least (dot, nth) says what the step is; the result with the
  least (dot, nth) is its result. Other results stay, as conflicts.
- A result settles the step, whatever else was said of it: what has happened has
  happened. Then the last decision counts, by position; then an attempt without an
  end, or with one that is `unkept`, leaves the step open.
- What was decided on other nodes does not make an intent safe by itself: the
  node looks at what a quorum holds before it writes one, and again after.

Rows (within the thread's):
    S k key                            the entry: its intents, ends, results and progress
    S v keylength₂ key digest₃₂        arguments or a result, under their SHA-256
    S t position₃₄                     key: every step, by the position of its first intent
    S o position₃₄                     key: the same, of those that are open
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt

ENTRY, CONTENT, ORDER, OPEN = b"Sk", b"Sv", b"St", b"So"
_HLC_BYTES = 8

State = Literal["open", "done", "failed", "ready", "abandoned"]
"""`ready`: its attempts were withdrawn or given free, and it may be begun again."""

EndKind = Literal["error", "withdrawn", "taken", "unkept"]
"""`withdrawn`: nothing was called. `taken`: another attempt took over.

`unkept`: the effect has happened, and its result could not be kept."""

Decided = Literal["retry", "abandon"]


class Intend(msgspec.Struct, array_like=True, frozen=True, tag="step-intent"):
    """The mutation: an attempt is about to be made."""

    step: str  # The step's key.
    name: str
    attempt: str
    digest: bytes = b""  # SHA-256 of the arguments, which travel beside it; empty: none were recorded.
    holder: str = ""
    parent: str = ""  # Key of the step within which it was begun.
    compensation: str = ""  # Name of what undoes it.
    takes: tuple[str, ...] = ()  # Open attempts that this one replaces.


class Progress(msgspec.Struct, array_like=True, frozen=True, tag="step-progress"):
    """The mutation: how far an attempt is."""

    step: str
    attempt: str
    progress: bytes


class End(msgspec.Struct, array_like=True, frozen=True, tag="step-end"):
    """The mutation: an attempt came to an end that is no result."""

    step: str
    attempt: str
    kind: EndKind
    detail: bytes = b""  # Of an error: a packed value.


class Decide(msgspec.Struct, array_like=True, frozen=True, tag="step-decision"):
    """The mutation: a human says what is to be done with a step that has no result."""

    step: str
    attempts: tuple[str, ...]  # Those that there were: nobody waits for their end any more.
    kind: Decided
    by: str = ""
    reason: str = ""
    key: str | None = None  # Of the request.


class Result(msgspec.Struct, array_like=True, frozen=True, tag="step-result"):
    """The mutation: what the effect came to. The value travels beside it."""

    step: str
    attempt: str  # Empty: a human found out.
    digest: bytes  # SHA-256 of the value.
    by: str = ""


Change = Intend | Progress | End | Decide | Result


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """An intent, as it is kept."""

    id: str
    position: bytes
    wall_ms: int
    name: str
    digest: bytes
    holder: str
    parent: str
    compensation: str


class Ended(msgspec.Struct, array_like=True, frozen=True):
    attempt: str
    kind: EndKind
    position: bytes
    wall_ms: int
    detail: bytes


class Decision(msgspec.Struct, array_like=True, frozen=True):
    kind: Decided
    attempts: tuple[str, ...]
    position: bytes
    wall_ms: int
    by: str
    reason: str
    key: str | None


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    digest: bytes
    position: bytes
    wall_ms: int
    attempt: str
    by: str


class Reached(msgspec.Struct, array_like=True, frozen=True):
    attempt: str
    position: bytes
    progress: bytes


class StepEntry(msgspec.Struct, array_like=True, frozen=True):
    """All that is known of a step. Each list is in the order of (dot, nth), but for progress, which is by attempt."""

    attempts: list[Attempt] = []
    ends: list[Ended] = []
    results: list[Outcome] = []
    progress: list[Reached] = []
    decisions: list[Decision] = []

    @property
    def first(self) -> Attempt:
        """The intent that says what the step is."""
        return self.attempts[0]

    @property
    def state(self) -> State:
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
        """Those of which nobody knows how they ended, or whether, or what came of them."""
        ended = {end.attempt for end in self.ends if end.kind != "unkept"} | {result.attempt for result in self.results}
        ended.update(*(decision.attempts for decision in self.decisions))
        return [attempt for attempt in self.attempts if attempt.id not in ended]

    @property
    def failures(self) -> list[Ended]:
        """The errors since it was last given free, the latest last."""
        freed = max((decision.position for decision in self.decisions if decision.kind == "retry"), default=b"")
        errors = [end for end in self.ends if end.kind == "error" and end.position > freed]
        return sorted(errors, key=_position)

    def holds(self, attempt: str) -> bool:
        return any(known.id == attempt for known in self.attempts)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StepEntry)


def apply(rows: Rows, stamp: Stamp, change: Change, content: bytes = b"") -> StepEntry:
    """Apply a change, and return what is known of the step then. `content` is what travelled beside it."""
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
    """Dot and nth: what decides between claims to one place. Not the HLC, whose order the clocks make."""
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
    """
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
    """Arguments, or a result.

    Raises:
        StoreCorrupt: the row that must hold it is not there.
    """
    stored = rows.get(_content_row(step, digest))
    if stored is None:
        raise StoreCorrupt(f"the value {digest.hex()} of step {step!r} is not in its ledger. Run `shoal verify`.")
    return stored


def listing(rows: Rows, *, only_open: bool, after: bytes = b"") -> Iterator[tuple[bytes, str]]:
    """Position and key of each step after a position, in the order of their first intents."""
    table = OPEN if only_open else ORDER
    for row, step in rows.scan(table, after=table + after if after else None):
        yield row[len(table) :], step.decode()


def _content_row(step: str, digest: bytes) -> bytes:
    key = step.encode()
    return CONTENT + len(key).to_bytes(2, "big") + key + digest
