"""A thread's steps and status, and catching up before an agent resumes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct, field

from shoal.errors import NotFound, StatusChanged, StepSettled
from shoal.protocol.base import Cli, Http, Named, ObjectRead, ObjectWrite, Positive, Read, Reply, Value, operation

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

_STEP = "/threads/{thread}/steps/{step}"
_STATUS = "/threads/{thread}/status"


@operation(discloses=True, drives=True)
class BeginStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="begin-step"):
    """Write an intent, or read the state of the step if it must not begin.

    The intent is written, and `begun` is true, if the step is new or has failed fewer
    than `attempts` times; or, with `take_over`, if another attempt is open. With
    durability `quorum` or `all` the node first catches up with a quorum, and checks
    again after the intent is replicated; if it sees other open attempts then, all but one are withdrawn.
    With `local` or `take_over`, `rivals` are other attempts that are open.
    A repeated request with the same `attempt` is the same intent.

    Raises ThreadHeld while the thread is paused or waiting, unless the step is settled.
    """

    thread: str
    step: str  # The step's key.
    name: str
    attempt: str = ""  # A name unique to this attempt; if empty, the request's key, or a new one.
    holder: str = ""
    arguments: bytes = b""  # A packed value; empty if none are recorded.
    parent: str = ""
    compensation: str = ""
    attempts: int = 0  # How many attempts may fail; 0: as many as the node allows.
    take_over: bool = False


@operation(
    discloses=True,
    drives=True,
    http=Http(
        "PUT",
        _STEP + "/progress",
        "Record the progress of an attempt",
        errors=(NotFound, StepSettled),
        example={"progress": {"page": 7}, "attempt": ""},
        defaults={"attempt": ""},
    ),
)
class ProgressStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="progress-step"):
    """Record the progress of an attempt; an empty `attempt` is the only open one."""

    thread: str
    step: str
    attempt: str  # Empty: the only open one.
    progress: Value


@operation(
    discloses=True,
    batch=True,
    drives=True,
    http=Http(
        "PUT",
        _STEP,
        "Write the outcome of an attempt at a step",
        ops=("end-step",),
        errors=(NotFound, StepSettled),
        example={"outcome": "result", "value": {"receipt": "r-17"}, "attempt": ""},
        defaults={"attempt": ""},
    ),
)
class EndStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="end-step"):
    """Write the outcome of an attempt.

    An empty `attempt` is the only open one. `value` is the result, or
    the error as a packed map of `type` and `message`. `unkept`: the effect has happened, but its result cannot
    be stored; `value` is the error, with the result as text. The step stays open until it is resolved.
    """

    thread: str
    step: str
    attempt: str  # Empty: the only open one.
    outcome: Literal["result", "error", "withdrawn", "unkept"]  # How the attempt ended.
    value: Value = b""  # The result; or the error, as an object with `type` and `message`.


@operation(
    discloses=True,
    http=Http(
        "POST",
        _STEP + "/resolve",
        "Settle a step whose outcome is unknown",
        errors=(NotFound, StepSettled),
        example={"how": "abandon", "by": "ada", "reason": "the order was cancelled"},
    ),
    cli=Cli(
        "step resolve",
        """shoal step resolve support-1 call-42 result --result '{"paid": true}' --by ana --url http://n1:7400""",
        shows="state",
    ),
)
class ResolveStep(ObjectWrite["Step"], array_like=True, frozen=True, tag="resolve-step"):
    """Settle a step by a person's decision, which the journal records too."""

    thread: str
    step: str
    how: Literal["result", "retry", "abandon"]
    value: Value = b""  # The result, if `how` is "result".
    by: str = ""
    reason: str = ""


@operation(
    multi_read=True,
    http=Http("GET", _STEP, "A step", errors=(NotFound,)),
    cli=Cli("step show", "shoal step show support-1 call-42 --url http://n1:7400", help="Show a step with its attempts."),
)
class ReadStep(ObjectRead["Step"], array_like=True, frozen=True, tag="read-step"):
    """Read a step.

    Raises NotFound if there is none.
    """

    thread: str
    step: str


@operation(
    multi_read=True,
    http=Http("GET", "/threads/{thread}/steps", "Steps in the order of their first intents", ops=("steps",)),
    cli=Cli(
        "steps",
        "shoal steps support-1 --open --url http://n1:7400",
        help="List a thread's steps in order.",
        rows="items",
        place="position",
        columns=("begun_ms", "state", "name", "key", "attempts.holder", "attempts.error", "result"),
    ),
)
class ListSteps(ObjectRead["Steps"], array_like=True, frozen=True, tag="list-steps"):
    """List steps in the order of their first intents."""

    thread: str
    only_open: Annotated[bool, Named("open")] = False
    after: str = ""  # The `position` of the last step of the previous reply.
    limit: Positive = 1000


class StepAttempt(Struct, array_like=True, frozen=True):
    """One attempt at a step."""

    id: str
    state: Literal["open", "error", "withdrawn", "taken", "retry", "abandon", "result", "unkept"]
    holder: str
    begun_ms: int
    ended_ms: int  # 0 if it has not ended.
    error: Value  # A packed map, or empty.
    progress: Value  # A packed value, or empty.
    by: str  # The person who ended it, if one did.


class StepResult(Struct, array_like=True, frozen=True):
    """A result of the step that does not count, because another one does."""

    value: Value
    attempt: str  # The attempt that had it.
    by: str
    wall_ms: int


class Step(Reply, array_like=True, frozen=True, tag="step"):
    """A step with its attempts and its result."""

    key: str
    position: str  # The position of its first intent, 68 hex digits.
    name: str
    state: StepState
    begun_ms: int
    ended_ms: int  # When the result was written; 0 if there is none.
    result_position: str  # Its place in the order of completion; empty if there is no result.
    arguments: Value
    result: Value
    result_by: str  # The person who entered it, if one did.
    parent: str
    compensation: str
    failures: int  # Failed attempts since a retry was last allowed.
    attempts: list[StepAttempt]
    conflicts: list[StepResult] = field(default_factory=list)  # Results of other attempts, which do not count.
    begun: bool = False  # Whether the caller's own attempt is open, so that the caller causes the effect.
    rivals: list[str] = field(default_factory=list)  # Other open attempts, if `begun`.
    attempt: str = ""  # The caller's own attempt, if `begun`.


class Steps(Reply, array_like=True, frozen=True, tag="steps"):
    """A page of a thread's steps."""

    items: Annotated[list[Step], Named("steps")]  # The steps with their results.
    more: bool  # Ask again with after=items[-1].position.


@operation(
    discloses=True,
    http=Http(
        "PUT",
        _STATUS,
        "Set the thread's status: while it is paused, no step begins until it is running again",
        errors=(NotFound, StatusChanged),
        example={"status": "paused", "by": "ada", "reason": "look at the plan first"},
    ),
    cli=(
        Cli(
            "pause",
            """shoal pause support-1 --reason "too dear" --by ana --url http://n1:7400""",
            shows="status",
            help="Pause a thread's steps until a person approves.",
            sets={"status": "paused"},
            hides=("expect_ms",),
        ),
        Cli(
            "approve",
            "shoal approve support-1 --by ana --url http://n1:7400",
            shows="status",
            help="Let a thread continue that is paused or waits for a person.",
            sets={"status": "running"},
            hides=("expect_ms",),
            known=True,  # Else a misspelt name is approved, and the right one goes on waiting.
        ),
    ),
)
class MoveThread(ObjectWrite["Standing"], array_like=True, frozen=True, tag="move-thread"):
    """Set a thread's status, which its journal records too.

    With `expect_ms` it is set only if the status is the one of that time at the serving node, so that of two people who
    decide there, the second is told what the first did.
    """

    thread: str
    status: ThreadStatus
    reason: str = ""
    by: str = ""
    expect_ms: int | None = None  # The `wall_ms` of the status that the caller saw.


@operation(multi_read=True, http=Http("GET", _STATUS, "The thread's status", ops=("status",)))
class ReadStanding(ObjectRead["Standing"], array_like=True, frozen=True, tag="read-standing"):
    """Read a thread's status. If it was never set, the thread is running."""

    thread: str


class Standing(Reply, array_like=True, frozen=True, tag="standing"):
    """A thread's status, with its author, reason and time."""

    status: ThreadStatus
    reason: str
    by: str
    wall_ms: int  # 0 if it was never set.


class CatchUp(Read["CaughtUp"], array_like=True, frozen=True, tag="catch-up"):
    """Fetch what a quorum of owners holds of a thread's partition."""

    space: str
    thread: str


class CaughtUp(Reply, array_like=True, frozen=True, tag="caught-up"):
    """The result of catching up."""

    quorum: bool  # Whether this node now holds all that a quorum had acknowledged before the request.
    size: int  # The number of configured owners.
    reason: str  # If `quorum` is false, why; else empty.
