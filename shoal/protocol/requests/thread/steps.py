"""A thread's steps, its status, and what going on after a crash needs to know."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Read, Reply
from shoal.protocol.requests.declared import operation

__all__ = [
    "BeginStep",
    "CatchUp",
    "CaughtUp",
    "EndStep",
    "ListSteps",
    "MoveThread",
    "ProgressStep",
    "ReadStanding",
    "ReadStep",
    "ResolveStep",
    "Standing",
    "Step",
    "StepAttempt",
    "StepResult",
    "StepState",
    "Steps",
    "ThreadStatus",
]

StepState = Literal["open", "done", "failed", "ready", "abandoned"]
ThreadStatus = Literal["running", "paused", "waiting", "done", "failed"]


class BeginStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="begin-step"):
    """Write an intent, or learn what became of the step.

    The intent is written, and `begun` is true, if the step is new or has failed less
    than `attempts` times; or, with `take_over`, if somebody else's attempt is open. With
    durability `quorum` or `all` the node first catches up with a quorum, and looks
    again once the intent is copied: `rivals` are other attempts that are open then.
    The same `attempt` again is the same intent.

    Raises ThreadHeld while the thread is paused or waiting, unless the step is settled.
    """

    thread: str
    step: str  # Its key.
    name: str
    attempt: str = ""  # Unique to this attempt; without one it is the request's key, or a new one.
    holder: str = ""
    arguments: bytes = b""  # A packed value; empty: none are recorded.
    parent: str = ""
    compensation: str = ""
    attempts: int = 0  # 0: as many as the node allows.
    take_over: bool = False


class ProgressStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="progress-step"):
    """Say how far an attempt is (of no text: the only one that is open)."""

    thread: str
    step: str
    attempt: str
    progress: bytes


@operation(batch=True)
class EndStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="end-step"):
    """Write what became of an attempt.

    An `attempt` of no text means the only one that is open. `value` is the result, or
    the error as a packed map of `type` and `message`. `unkept`: the effect has happened, and its result cannot
    be kept; `value` is the error, with the result as text. The step stays open until that is resolved.
    """

    thread: str
    step: str
    attempt: str
    outcome: Literal["result", "error", "withdrawn", "unkept"]
    value: bytes = b""


class ResolveStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="resolve-step"):
    """A human's word on a step that is not settled, also told in the journal."""

    thread: str
    step: str
    how: Literal["result", "retry", "abandon"]
    value: bytes = b""  # Of a result.
    by: str = ""
    reason: str = ""


@operation(multi_read=True)
class ReadStep(ObjectRead["Step"], array_like=True, frozen=True, tag="read-step"):
    """Read a step.

    Raises NotFound if there is none.
    """

    thread: str
    step: str


@operation(multi_read=True)
class ListSteps(ObjectRead["Steps"], array_like=True, frozen=True, tag="list-steps"):
    """Steps in the order of their first intents."""

    thread: str
    only_open: bool = False
    after: str = ""  # The `position` of an earlier answer's last step.
    limit: int = 1000


class StepAttempt(Struct, array_like=True, frozen=True):
    id: str
    state: Literal["open", "error", "withdrawn", "taken", "retry", "abandon", "result", "unkept"]
    holder: str
    begun_ms: int
    ended_ms: int  # 0: not known.
    error: bytes  # A packed map, or nothing.
    progress: bytes  # A packed value, or nothing.
    by: str  # Who ended it, if a human did.


class StepResult(Struct, array_like=True, frozen=True):
    """Another result of the step than the one that counts."""

    value: bytes
    attempt: str
    by: str
    wall_ms: int


class Step(Reply, array_like=True, frozen=True, tag="step"):
    key: str
    position: str  # 68 hex digits: of its first intent.
    name: str
    state: StepState
    begun_ms: int
    ended_ms: int  # When the result was written; 0: it was not.
    result_position: str  # The order of completion; empty: no result.
    arguments: bytes
    result: bytes
    result_by: str  # The human who found it out, if one did.
    parent: str
    compensation: str
    failures: int  # Since it was last given free.
    attempts: list[StepAttempt]
    conflicts: list[StepResult] = field(default_factory=list)
    begun: bool = False  # The request's own attempt is open: its caller causes the effect.
    rivals: list[str] = field(default_factory=list)  # Other open attempts, where one of the caller's is open.
    attempt: str = ""  # The caller's own, where it has begun.


class Steps(Reply, array_like=True, frozen=True, tag="steps"):
    items: list[Step]  # With their results.
    more: bool  # Ask again with after=items[-1].position.


class MoveThread(ObjectWrite["Standing"], array_like=True, frozen=True, tag="move-thread"):
    """Set a thread's status, also told in its journal."""

    thread: str
    status: ThreadStatus
    reason: str = ""
    by: str = ""


@operation(multi_read=True)
class ReadStanding(ObjectRead["Standing"], array_like=True, frozen=True, tag="read-standing"):
    """A thread whose status was never set is running."""

    thread: str


class Standing(Reply, array_like=True, frozen=True, tag="standing"):
    status: ThreadStatus
    reason: str
    by: str
    wall_ms: int  # 0: it was never set.


class CatchUp(Read["CaughtUp"], array_like=True, frozen=True, tag="catch-up"):
    """Take in what a quorum of owners holds of a thread's partition."""

    space: str
    thread: str


class CaughtUp(Reply, array_like=True, frozen=True, tag="caught-up"):
    quorum: bool  # Whatever a quorum had acknowledged before the request is on this node now.
    size: int  # Owners, as configured.
    reason: str  # Why it could not; else empty.
