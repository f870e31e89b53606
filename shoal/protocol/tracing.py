"""The trace that a request belongs to, as text, and how far the request has come in a node.

Nothing here knows who listens: `shoal.traces` does, if OpenTelemetry is installed and a provider of traces is set.

Laws:
- Without a listener nothing is told, and a request costs one look at a variable.
- A context that comes from outside is bounded and well-formed, or counts as none: no request is refused because of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from shoal.records import NamedTuple

TRACESTATE_CHARS_MAX = 512  # As W3C Trace Context has it. A longer one is dropped, and the traceparent kept.
PARENT_CHARS = 55  # Of a traceparent.
_LATER_CHARS_MAX = 256  # Of one of a later version.
TRACE_CHARS_MAX = PARENT_CHARS + 1 + TRACESTATE_CHARS_MAX
TRACED_COMMITS_MAX = 1024  # Traced writes that wait for the disk; the spans of further ones do not show their group commit.

_ZEROS = "0" * 32
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]*")


class Carried(NamedTuple):
    """A W3C trace context: the headers `traceparent` and `tracestate`."""

    parent: str  # 55 characters, such as "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether the caller records the trace."""
        return int(self.parent[-2:], 16) & 1 == 1

    @property
    def text(self) -> str:
        """As a frame of a session carries it."""
        return f"{self.parent} {self.state}" if self.state else self.parent


NOT_RECORDED = "-"
"""In a frame, instead of a context: its client records nothing of it. Who records nothing needs no name for it."""


def carried_of(parent: str, state: str = "") -> Carried | None:
    """The context in these headers; None if there is none, or no legal one."""
    # Version 00 has nothing after its flags. A later one is read as far as 00 goes, as the specification says.
    if len(parent) != PARENT_CHARS and not (PARENT_CHARS < len(parent) <= _LATER_CHARS_MAX and parent[:2] != "00"):
        return None
    if parent[PARENT_CHARS : PARENT_CHARS + 1] not in ("", "-"):
        return None
    parent = parent[:PARENT_CHARS]
    found = _TRACEPARENT.fullmatch(parent)
    if found is None or found[1] == _ZEROS or found[2] == _ZEROS[:16]:
        return None
    if len(state) > TRACESTATE_CHARS_MAX or not _TRACESTATE.fullmatch(state):
        state = ""
    return Carried(parent, state)


def carried_in(text: str) -> Carried | None:
    """The context in a frame's field: a traceparent, or that, a space and a tracestate; None if it has no legal one."""
    if not text or len(text) > TRACE_CHARS_MAX:
        return None
    parent, _, state = text.partition(" ")
    return carried_of(parent, state)


carrying: ContextVar[str | None] = ContextVar("shoal_trace", default=None)
"""It goes with a client's requests to the node: `Carried.text`, or nothing. None: as `Untold` says."""


class Untold:
    """Goes with a request of which `carrying` says nothing."""

    text = ""
    """`NOT_RECORDED` while the program has a provider of traces: then `carrying` says what is recorded."""


def sent_along() -> str:
    """The text that goes with a request which is sent now."""
    text = carrying.get()
    return Untold.text if text is None else text


ASK_QUORUM = "shoal.ask_quorum"
FOLLOW = "shoal.follow"
"""A request waits for this: the answers of a quorum; operations that its client has seen elsewhere."""


class Commit(NamedTuple):
    """A group commit, as it is told to a write that it covers."""

    number: int  # From 1, in this opening of the directory.
    writes: int  # That it covers, traced or not.
    together: Sequence[Stages]  # The traced writes among them.


class Stages(Protocol):
    """Is told how far one request has come in a node, as soon as it has come there."""

    def begun(self) -> None:
        """It has its turn; until now it waited for it. Told again, it means nothing."""
        ...

    @property
    def name(self) -> str:
        """The name of its trace: 32 hex digits."""
        ...

    def issued(self, *, is_durable: bool) -> None:
        """A write of it is made. If it is not durable, `committed` is told once it is."""
        ...

    def committed(self, commit: Commit, /) -> None:
        """The write is durable here."""
        ...

    def copying(self, peers: Sequence[str], /) -> None:
        """The write is to be acknowledged by enough of these peers, which are addresses."""
        ...

    def acknowledged(self, peer: str, holds: bool, /) -> None:
        """This peer has told that it holds the write, or the time for that is over."""
        ...

    def copied(self) -> None:
        """Enough of them have."""
        ...

    def during(self, what: str, /) -> AbstractContextManager[None]:
        """A context in which the request waits for something else, which is `ASK_QUORUM` or `FOLLOW`."""
        ...


stages: ContextVar[Stages | None] = ContextVar("shoal_stages", default=None)
"""Is told of the request under way; None: nobody is."""


@contextmanager
def during(what: str) -> Iterator[None]:
    """A context in which the request under way waits for something that has this name."""
    told = stages.get()
    if told is None:
        yield
        return
    with told.during(what):
        yield


class Commits:
    """The traced writes of a node that are not durable yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Stages]] = []
        self._durable = 0

    def add(self, number: int, told: Stages) -> None:
        """The write of this number is a traced one's. It counts as told if it is durable already."""
        if number > self._durable and len(self._waiting) < TRACED_COMMITS_MAX:
            self._waiting.append((number, told))

    def settled(self, number: int, commits: int) -> None:
        """All writes up to this number are durable, by the group commit of this number."""
        before, self._durable = self._durable, number
        if not self._waiting:
            return
        together = tuple(told for wanted, told in self._waiting if wanted <= number)
        self._waiting = [each for each in self._waiting if each[0] > number]
        commit = Commit(commits, number - before, together)
        for told in together:
            told.committed(commit)
