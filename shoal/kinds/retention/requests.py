"""Retention of a space: its rules as a node carries them out, and one thread under a rule."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct, field

from shoal.protocol.base import Http, Maintenance, Named, Natural, Positive, Read, Reply, Seconds, Shape, operation

__all__ = ["ReadRules", "RetainThread", "RetentionRule", "RetentionRules", "ThreadRetained"]


@operation()
class RetainThread(Maintenance["ThreadRetained"], array_like=True, frozen=True, tag="retain-thread"):
    """Let go what a rule lets go of one thread: checkpoints as `Prune` does, events as `Trim`, done items as `Purge`, or all.

    The whole thread goes if nothing was written to it for `thread_older_than_ms`, nothing in it waits, and no step is open.
    """

    rests: ClassVar[bool] = True

    thread: str
    keep_last: Positive | None = None
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None
    thread_older_than_ms: Annotated[Seconds | None, Named("thread_older_than_s")] = None
    events_older_than_ms: Annotated[Seconds | None, Named("events_older_than_s")] = None
    keep_labelled: bool = False  # Whether a labelled checkpoint keeps the whole thread.
    dry_run: bool = False
    finished_older_than_ms: Annotated[Seconds | None, Named("finished_older_than_s")] = None


class ThreadRetained(Reply, array_like=True, frozen=True, tag="thread-retained"):
    """The part of a thread that went, or would go."""

    deletes: bool  # The whole thread. Then the figures are of all that it holds.
    checkpoints: int
    events: int
    bytes: int  # Stored bytes that are freed on each node once this is stable.
    stays: dict[str, int]  # Checkpoints, by the reason for which they stay.
    dry_run: bool
    finished: int = 0  # Done items of worklists.


@operation(family="thread", http=Http("GET", "/retention", "A space's rules of retention, and what a node did by them"))
class ReadRules(Read["RetentionRules"], array_like=True, frozen=True, tag="read-rules"):
    """Read a space's rules of retention as the serving node knows them, and what it has done by them."""

    space: str


class RetentionRule(Struct, array_like=True, frozen=True):
    """The bounds for the threads whose names begin with a prefix. None: that bound is not set."""

    prefix: str  # A thread has the rule of the longest one.
    keep_last: int | None = None  # Checkpoints of each branch.
    older_than_ms: Annotated[Seconds | None, Named("older_than_s")] = None  # Checkpoints; with `keep_last` both must allow it.
    threads_older_than_ms: Annotated[Seconds | None, Named("threads_older_than_s")] = None  # Since the last activity.
    events_older_than_ms: Annotated[Seconds | None, Named("events_older_than_s")] = None  # Of the journals.
    keep_labelled: bool = False  # Whether a labelled checkpoint keeps its whole thread.
    wall_ms: Annotated[int, Shape.MOMENT] = 0  # When it was set.
    rivals: int = 0  # How many others were set concurrently; what goes is let go by each of them.
    trouble: str = ""  # What is wrong with its record; then nothing goes.
    finished_older_than_ms: Annotated[Seconds | None, Named("finished_older_than_s")] = None  # Done items of worklists.


class RetentionRules(Reply, array_like=True, frozen=True, tag="retention-rules"):
    """The rules of a space, and what one node has done by all rules since it started."""

    space: str
    rules: list[RetentionRule] = field(default_factory=list)  # In the order of their prefixes.
    is_in_charge: bool = True  # Whether this node carries them out; else another one does.
    last_ms: Annotated[int, Shape.MOMENT] = 0  # When it looked through the space last; 0: not yet.
    checkpoints: Natural = 0  # That went.
    events: Natural = 0
    threads: Natural = 0
    bytes: Natural = 0
    due: Natural = 0  # Checkpoints, events, done items and threads that may go and have not yet.
    waits_for: str = ""  # Why nothing goes now, for people; else empty.
    is_empty: bool = False  # Whether nothing is in it: check its name. What was set holds once something is written there.
    finished: Natural = 0  # Done items of worklists that went.
    all_labelled: bool = False  # After setting: the checkpoints of the first threads all have labels, so none can go by it.
