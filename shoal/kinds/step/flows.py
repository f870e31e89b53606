"""The records of a thread's steps: their attempts, their results, and the errors for steps that must not run.

Steps before an agent resumes after a crash: let the node catch up, and compare the agent's setting with the recorded one.

Law: if the node cannot prove that it holds all that a majority of the owners acknowledged, the result says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal

from msgspec import Struct, field

from shoal import values
from shoal.errors import (
    DriftRefused,
    Forbidden,
    NoQuorum,
    NotFound,
    ResultNotKept,
    ShoalError,
    StepAbandoned,
    StepFailed,
    StepUnresolved,
)
from shoal.kinds.thread.flows.checkpoints import (
    SAID_AGAIN_EVERY,
    Provenance,
    ThreadCheckpoints,
    differences_of,
    drift_refused,
    setting_of,
)
from shoal.protocol import requests
from shoal.protocol.base import Http, Value
from shoal.protocol.requests import Durability, StepState
from shoal.workflows.connection import Connection, Flow, moment


class Attempt(Struct, frozen=True):
    """One attempt at a step."""

    id: str
    state: str  # "open", "result", "error", "withdrawn", "taken", "retry", "abandon" or "unkept".
    holder: str  # The host and process that made it.
    begun: datetime
    ended: datetime | None
    error: Mapping[str, str] | None  # Its `type` and `message`; if a result could not be stored, also `result` as text.
    progress: Any
    by: str  # The person who ended it, if one did.


class StepRecord(Struct, frozen=True):
    """The log's record of a step."""

    key: str
    name: str
    state: StepState
    begun: datetime
    ended: datetime | None  # When its result was written.
    parent: str  # The key of the step within which it was begun; empty if there is none.
    compensation: str
    failures: int  # Failed attempts since a retry was last allowed.
    attempts: tuple[Attempt, ...]
    result_by: str  # The person who entered the result, if one did.
    _completed: str
    _arguments: bytes
    _result: bytes
    _conflicts: tuple[bytes, ...]

    @property
    def result(self) -> Any:
        """The result, decoded anew at each access; None if there is none."""
        return values.decode(self._result) if self._result else None

    @property
    def arguments(self) -> Any:
        """The recorded arguments, decoded anew at each access; None if there are none."""
        return values.decode(self._arguments) if self._arguments else None

    @property
    def conflicts(self) -> list[Any]:
        """Results of other attempts, which do not count."""
        return [values.decode(packed) for packed in self._conflicts]

    @property
    def holder(self) -> str:
        """The holder of the open attempt or, if none is open, of the last one."""
        return self._latest.holder

    @property
    def since(self) -> datetime:
        """When the attempt of `holder` began."""
        return self._latest.begun

    @property
    def error(self) -> Mapping[str, str] | None:
        """The `type` and `message` of the last attempt that failed; None if none did."""
        return next((attempt.error for attempt in reversed(self.attempts) if attempt.error is not None), None)

    @property
    def progress(self) -> Any:
        """The last reported progress, that of the latest attempt first."""
        return next((attempt.progress for attempt in reversed(self.attempts) if attempt.progress is not None), None)

    @property
    def _latest(self) -> Attempt:
        by_time = sorted(self.attempts, key=lambda attempt: attempt.begun)
        return next((attempt for attempt in by_time if attempt.state == "open"), by_time[-1])


async def steps(
    connection: Connection, space: str, thread: str, *, open: bool = False, stale: bool = False
) -> AsyncIterator[StepRecord]:
    """The steps of a thread in the order of their first intents; only open ones if `open`."""
    after = ""
    while True:
        page = await connection.read(requests.ListSteps(space, thread, open, after), stale=stale)
        for found in page.items:
            yield record_of(found)
        if not page.more:
            return
        after = page.items[-1].position


def record_of(step: requests.Step) -> StepRecord:
    """A step as handles show it."""
    return StepRecord(
        step.key,
        step.name,
        step.state,
        moment(step.begun_ms),
        moment(step.ended_ms) if step.ended_ms else None,
        step.parent,
        step.compensation,
        step.failures,
        tuple(_attempt(attempt) for attempt in step.attempts),
        step.result_by,
        step.result_position,
        step.arguments,
        step.result,
        tuple(conflict.value for conflict in step.conflicts),
    )


def _attempt(attempt: requests.StepAttempt) -> Attempt:
    return Attempt(
        attempt.id,
        attempt.state,
        attempt.holder,
        moment(attempt.begun_ms),
        moment(attempt.ended_ms) if attempt.ended_ms else None,
        _error(attempt.error) if attempt.error else None,
        values.decode(attempt.progress) if attempt.progress else None,
        attempt.by,
    )


def _error(packed: bytes) -> Mapping[str, str]:
    found = values.decode(packed)
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {"message": str(found)}


def refusal(record: StepRecord, *, own: str = "") -> ShoalError:
    """The error for a step that must not run: abandoned, unresolved or failed. `own` is the caller's attempt."""
    what = f"step {record.name!r} (key {record.key!r})"
    if record.state == "abandoned":
        by = next((attempt.by for attempt in reversed(record.attempts) if attempt.by), "")
        return StepAbandoned(
            f"{what} was abandoned{f' by {by}' if by else ''}. Nothing was called. "
            'Allow it again with resolve(key, "retry"), or use a new key.',
            key=record.key,
            name=record.name,
            by=by,
        )
    if record.state == "open":
        unkept = next((attempt for attempt in reversed(record.attempts) if attempt.state == "unkept"), None)
        if unkept is not None and all(attempt.state != "open" or attempt.id == own for attempt in record.attempts):
            return not_kept(record, unkept)
        other = next((a for a in record.attempts if a.state == "open" and a.id != own), record.attempts[-1])
        return StepUnresolved(
            f"{what} was begun by {other.holder or 'somebody'} at {other.begun.isoformat()}, and has not ended: "
            "its effect may have happened, or may be in progress. Nothing was called. Find out, and settle it with "
            'thread.resolve(key, "result"|"retry"|"abandon"). Pass idempotent=True for a step that may be repeated.',
            key=record.key,
            name=record.name,
            holder=other.holder,
            since_ms=int(other.begun.timestamp() * 1000),
        )
    error = record.error or {}
    return StepFailed(
        f"{what} has failed {record.failures} times in {len(record.attempts)} attempts"
        + (f", the last time with {error.get('type')}: {error.get('message')}" if error else "")
        + '. Nothing was called now. Allow more attempts, or allow a retry with resolve(key, "retry").',
        key=record.key,
        name=record.name,
        attempts=len(record.attempts),
        type=error.get("type"),
        error=error.get("message"),
    )


def not_kept(record: StepRecord, attempt: Attempt) -> ResultNotKept:
    """The error for an effect that has happened but whose result could not be stored."""
    told = attempt.error or {}
    return ResultNotKept(
        f"step {record.name!r} (key {record.key!r}) was carried out by {attempt.holder or 'somebody'}, but its result could "
        f"not be stored: {told.get('message', '')} It was {told.get('result', '')}. "
        "The result was written as text, and the step is not called again. "
        'Settle it with thread.resolve(key, "result", value=…), or with "retry" if it may be repeated.',
        key=record.key,
        name=record.name,
        holder=attempt.holder,
        since_ms=int(attempt.begun.timestamp() * 1000),
        result=told.get("result", ""),
    )


async def catch_up(connection: Connection, space: str, thread: str) -> str:
    """Let the node fetch all that a majority of the owners holds. Return what may be missing, in words; empty if nothing is."""
    caught = await connection.read(requests.CatchUp(space, thread))
    if caught.quorum:
        return ""
    try:
        members = (await connection.read(requests.Cluster())).members
    except Forbidden:
        members = []  # The reason is told without their names.
    away = [_away(member) for member in members if member.state == "unreachable"]
    without = f", without {', '.join(away)}" if away else ""
    why = caught.reason.rstrip(".")
    return f"this is the state of this node alone{without}: writes that others acknowledged may be missing ({why})"


async def drift(
    checkpoints: ThreadCheckpoints, branch: str, setting: bytes, *, refuse: bool, stale: bool = False
) -> tuple[str, ...]:
    """The differences between a packed setting and the one that was last recorded on a branch, in words.

    Raises:
        DriftRefused: there are differences, and `refuse` is set.
    """
    if not setting:
        return ()
    async for found in checkpoints.pages(branch=branch, limit=SAID_AGAIN_EVERY, stale=stale):
        if found.setting:
            differences = tuple(differences_of(values.decode(found.setting), values.decode(setting)))
            if differences and refuse:
                raise drift_refused(checkpoints.thread, differences)
            return differences
    return ()


def _away(member: requests.Member) -> str:
    since = f"linked last at {moment(member.linked_ms).isoformat()}" if member.linked_ms else "never linked"
    return f"{member.name} ({since})"


_LISTED_MAX = 1000  # Steps, and events, that one answer lists.


class ReasonView(Struct, array_like=True, frozen=True):
    """How the answer was found, and what it leaves out."""

    branch: str
    head: str | None
    other_heads: list[str]
    skipped: list[str]  # The keys of steps that are done.
    unresolved: list[str]  # The keys of steps that were begun and have not ended.
    more_steps: bool
    more_events: bool
    quorum: bool  # Whether a majority of the owners was asked, so that the answer holds at least what they hold.
    staleness: str  # If `quorum` is false: what may be missing, and why.
    differences: list[str]  # Differences between the given configuration and dependencies and the recorded ones.


class ResumeView(Struct, array_like=True, frozen=True):
    """Everything that an agent needs to continue after a crash."""

    checkpoint: requests.Checkpoint | None
    open: list[requests.Step]
    events: list[requests.Event]  # The events since about the time of the checkpoint.
    reason: ReasonView


class Resume(Flow[ResumeView], frozen=True):
    """Read a thread's newest state, open steps and later events, after catching up with a quorum if that is possible."""

    http: ClassVar = (
        Http(
            "GET",
            "/threads/{thread}/resume",
            "The newest state by quorum, the open steps, the journal since, and why",
            errors=(NotFound, DriftRefused, NoQuorum),
        ),
    )

    space: str
    thread: str
    branch: str = "main"
    configuration: dict[str, Value] = field(default_factory=dict)  # The agent's configuration, compared with the recorded one.
    dependencies: dict[str, Value] = field(default_factory=dict)  # Versions by name, compared with the recorded ones.
    on_drift: Literal["warn", "refuse"] = "warn"  # What to do if the configuration or a dependency differs.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> ResumeView:
        """Read all of it.

        Raises:
            DriftRefused: the settings differ from those recorded, and `on_drift` is "refuse".
        """
        space, thread = self.space, self.thread
        setting = setting_of(_decoded(self.configuration), _decoded(self.dependencies))
        staleness = await catch_up(connection, space, thread)
        try:
            checkpoint = await connection.read(requests.Load(space, thread, branch=self.branch))
        except NotFound:
            checkpoint = None
        steps = await connection.read(requests.ListSteps(space, thread, limit=_LISTED_MAX))
        still = await connection.read(requests.ListSteps(space, thread, only_open=True, limit=_LISTED_MAX))
        differences: tuple[str, ...] = ()
        if checkpoint is not None:
            checkpoints = ThreadCheckpoints(connection, space, thread, Provenance(connection, ""))
            differences = await drift(checkpoints, self.branch, setting, refuse=self.on_drift == "refuse")
        since_ms = 0 if checkpoint is None else checkpoint.wall_ms
        events = await connection.read(requests.ReadJournal(space, thread, limit=_LISTED_MAX, since_ms=since_ms))
        reason = ReasonView(
            self.branch,
            None if checkpoint is None else checkpoint.id,
            [] if checkpoint is None else [head for head in checkpoint.heads if head != checkpoint.id],
            [step.key for step in steps.items if step.state == "done"],
            [step.key for step in still.items],
            steps.more or still.more,
            events.more,
            not staleness,
            staleness,
            list(differences),
        )
        return ResumeView(checkpoint, still.items, events.events, reason)


def _decoded(packed: Mapping[str, bytes]) -> dict[str, Any] | None:
    """None if nothing was given."""
    return {name: values.decode(value) for name, value in packed.items()} or None
