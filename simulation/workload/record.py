"""What all clients of a run did and saw, noted as it happens: in a history, and in the trace.

Laws:
- A request is noted before it is sent, its end once the client knows it.
- The promises that can be judged at once are, and what breaks them is noted here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from shoal.errors import ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import AnyReply, Durability
from simulation.judging.amounts import Amounts
from simulation.judging.history import Acknowledged, Failed, History, Invoked, LetGo, Refused, Resent, Shown, WriteKind
from simulation.judging.violation import Violation
from simulation.world.trace import Trace

VIOLATIONS_MAX = 50
"""More of them say no more."""


class Record:
    """`now` is the virtual time; `violations` are those that were seen at once; `amounts` are of adds without a key."""

    def __init__(self, trace: Trace, now: Callable[[], float]) -> None:
        self.history = History()
        self.violations: list[Violation] = []
        self.amounts = Amounts()
        self._trace = trace
        self._now = now
        self._numbers = count(1)

    # ── writes ────────────────────────────────────────────────────────────────

    def invoked(
        self,
        kind: WriteKind,
        name: str,
        *,
        session: str = "",
        durability: Durability,
        key: str = "",
        by: int = 0,
        over: list[int] | None = None,
        batch: int = 0,
        who: str = "",
    ) -> Invoked:
        """A write under a number of its own; `who` stands in the trace for one whose session is owed nothing for it."""
        write = Invoked(next(self._numbers), kind, name, session, durability, key, by, over, batch)
        self.history.note(write)
        self._trace.mark(session or who, "asks:", f"{_text(write)}, {durability}{key and f', key {key}'}")
        return write

    def resent(self, writes: Sequence[Invoked], who: str) -> None:
        for write in writes:
            self.history.note(Resent(write.number))
            self._trace.mark(who, "asks again:", _text(write))

    def acknowledged(
        self, writes: Sequence[Invoked], reply: AnyReply | None, *, who: str, node: str, again: bool = False
    ) -> None:
        """`reply` is to all of them, as one request."""
        replies: Sequence[object] = (
            reply.replies if writes and isinstance(reply, requests.BatchReply) else [reply] * len(writes)
        )
        for write, told in zip(writes, replies, strict=True):
            id = told.id if isinstance(told, requests.Saved | requests.Appended) else ""
            value = told.value if isinstance(told, requests.Added) else 0
            self.history.note(Acknowledged(write.number, id, value, node, self._now(), again))
            self._trace.mark(who, "is told:", f"{_text(write)} is written, by {node} {id[:8]}{value or ''}".rstrip())

    def failed(self, writes: Sequence[Invoked], error: ShoalError, *, who: str, node: str) -> None:
        for write in writes:
            # An edit stays in its mirror, whatever the error says of this attempt: it may be written later.
            written = "unknown" if write.kind == "edit" else error.written
            self.history.note(Failed(write.number, written, error.code, node))
            self._trace.mark(who, "is told:", f"{_text(write)} failed with {error.code}, by {node}; written: {written}")

    # ── reads ─────────────────────────────────────────────────────────────────

    def shown(self, shown: Shown) -> None:
        self.history.note(shown)
        told = shown.ids or shown.numbers or shown.value
        text = ", ".join(str(each)[:8] for each in told) if isinstance(told, list) else str(told)
        self._trace.mark(shown.session, "is shown:", f"{shown.kind} {shown.name} by {shown.node}: {text}")

    def refused(self, session: str, name: str, error: ShoalError, node: str) -> None:
        self.history.note(Refused(session, name, error.code, node))
        self._trace.mark(session, "is refused:", f"{name} by {node}: {error.code}")

    def let_go(self, session: str, name: str, error: ShoalError) -> None:
        self.history.note(LetGo(session, name, error.code))
        self._trace.mark(session, "lets go of", f"{name}: {error.code}")

    # ── parts ─────────────────────────────────────────────────────────────────

    def did(self, who: str, what: str) -> None:
        """Something that a part of the workload judges by itself."""
        self._trace.mark(who, "does:", what)

    # ── verdicts ──────────────────────────────────────────────────────────────

    def violated(self, invariant: str, text: str) -> None:
        """Something that is broken already; what was said is not said again."""
        violation = Violation(invariant, text)
        if len(self.violations) < VIOLATIONS_MAX and violation not in self.violations:
            self.violations.append(violation)
            self._trace.mark("-", f"violated {invariant}:", text)


def _text(write: Invoked) -> str:
    return f"{write.kind} {write.number} of {write.name}"
