"""Steps over storage: when an intent may be written, and what ends one. And a thread's status; the threads of a directory that
an older version wrote are listed under their standings, in pieces.

Laws:
- A piece of that list is read and written within one turn of the loop, so that no standing changes in between. One that changes
  later is listed by the write that changes it.
- Until all are listed, a search by status reads every thread. If the node stops before, the next incarnation begins anew.
- An intent is written only if this replica knows of no result, no abandonment, no
  open attempt of another caller (unless it is taken over), and fewer failures than
  allowed. Only a caller whose reply says `begun` causes the effect; every other caller
  gets the step as it is.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import get_args

from shoal import values
from shoal.config import Config
from shoal.crdt.applier import NOTHING, Blobs
from shoal.crdt.rows import Rows
from shoal.errors import (
    InvalidInput,
    KeyReused,
    NotFound,
    Overloaded,
    ShoalError,
    StatusChanged,
    StepSettled,
    StoreCorrupt,
    ThreadHeld,
    TooLarge,
)
from shoal.kinds.journal.serving.journals import tell
from shoal.kinds.step import state as status
from shoal.kinds.step import state as step_log
from shoal.kinds.step.state import StepEntry
from shoal.names import check_key, check_name
from shoal.node.catalog import Catalog, is_asking, standing_of
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Contest, Contests, Readers, Target, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size, check_text
from shoal.node.transaction import Transaction
from shoal.protocol.requests import (
    BeginStep,
    EndStep,
    ListSteps,
    MoveThread,
    ProgressStep,
    ReadStanding,
    ReadStep,
    ResolveStep,
    Standing,
    Step,
    StepAttempt,
    StepResult,
    ThreadStatus,
)
from shoal.protocol.requests import Steps as Listed
from shoal.storage.keys import Kind

_STATUSES: tuple[str, ...] = get_args(ThreadStatus)


class StatusHandler:
    """The handler of a thread's status. A move also appends an event to the journal."""

    def __init__(self) -> None:
        self.checks: Checks = {MoveThread: self._check}
        self.writers: Writers = {MoveThread: self._move}
        self.readers: Readers = {ReadStanding: self._read}

    def _check(self, request: MoveThread) -> None:
        check_name("thread", request.thread)
        if request.status not in _STATUSES:
            raise InvalidInput(
                f"status must be one of {', '.join(_STATUSES)}; got {request.status!r}. Nothing was written.", field="status"
            )
        check_text(request.reason, "a reason")
        check_text(request.by, "an author")

    def _move(self, context: WriteContext, request: MoveThread) -> Standing:
        """Set the status.

        Raises:
            StatusChanged: it is not the one that the caller saw.
        """
        now = status_of(context.rows)
        if request.expect_ms is not None and request.expect_ms != now.wall_ms:
            by = f" by {now.by}" if now.by else ""
            raise StatusChanged(
                f"the status of thread {request.thread!r} was set meanwhile{by}: it is {now.status}. Nothing was written. "
                "Read it again, and decide anew.",
                status=now.status,
                by=now.by,
                wall_ms=now.wall_ms,
            )
        change = status.Move(request.status, request.reason, request.by, context.implied_key)
        context.apply(change)
        tell(context, "status", {"status": request.status, "by": request.by, "reason": request.reason})
        return status_of(context.rows)

    def _read(self, view: View, _request: ReadStanding) -> Standing:
        return status_of(view.rows)


def status_of(rows: Rows) -> Standing:
    """The status of a thread as clients get it; `running` if nobody has set one."""
    current = status.current(rows)
    if current is None:
        return Standing("running", "", "", 0)
    return Standing(current.status, current.reason, current.by, current.wall_ms)


_PIECE = 64  # Threads; each takes about 0.1 ms.
_PAUSE_S = 0.5  # If too many writes wait for the disk.


class StatusLister:
    """The background task that lists the threads of an old directory under their standings.

    `closed`: the partitions that are being replaced.
    """

    def __init__(self, context: NodeContext, catalog: Catalog, generations: Generations) -> None:
        self._storage = context.storage
        self._upkeep = context.upkeep
        self._commit = context.commit
        self._catalog = catalog
        self._generations = generations
        self._closed = context.partitions.closed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running loop, if there is anything to do."""
        if self._catalog.is_due:
            self._task = self._upkeep.begin(self._run(), "upkeep of statuses")

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        threads = self._catalog.all_of(Kind.THREAD)
        with suppress(ShoalError):  # Storage failed or stops.
            while piece := list(islice(threads, _PIECE)):
                await self._written(piece)
            await self._written(None)

    async def _written(self, piece: list[Target] | None) -> None:
        """List these threads; None: all are listed."""
        while True:
            transaction = Transaction(self._storage)
            if piece is None:
                self._catalog.mark_indexed(transaction)
            for target in piece or ():
                if target.partition in self._closed:
                    continue  # It is being replaced, and its threads are listed with that.
                with suppress(StoreCorrupt):  # It is listed once it has been rebuilt.
                    self._list(transaction, target)
            if not transaction.rows:
                await asyncio.sleep(0)
                return
            try:
                number = self._commit.write(transaction.rows)
            except Overloaded:
                await asyncio.sleep(_PAUSE_S)
                continue
            transaction.written()
            await self._commit.wait_durable(number)
            return

    def _list(self, transaction: Transaction, target: Target) -> None:
        rows = self._generations.current(transaction, target).rows
        self._catalog.set_standing(transaction, target, standing_of(rows))
        self._catalog.set_asking(transaction, target, is_asking(rows))


STEP_ATTEMPTS_MAX = 100  # Attempts of one step in total; each leaves a trace of some hundred bytes.
STEP_PROGRESS_BYTES_MAX = 64 * 1024  # The progress of a step; the same bound applies to an error.

_OUTCOMES = ("result", "error", "withdrawn", "unkept")
_RESOLUTIONS = ("result", "retry", "abandon")
_SAID: tuple[step_log.EndKind, ...] = ("unkept", "error", "withdrawn", "taken")


class Steps:
    """The handler of the step log."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {
            BeginStep: self._check_begin,
            ProgressStep: self._check_progress,
            EndStep: self._check_end,
            ResolveStep: self._check_resolve,
        }
        self.writers: Writers = {
            BeginStep: self._begin,
            ProgressStep: self._progress,
            EndStep: self._end,
            ResolveStep: self._resolve,
        }
        self.readers: Readers = {ReadStep: self._read, ListSteps: self._list}
        self.contests: Contests = {
            BeginStep: Contest(
                won=lambda step: step.begun,
                again=self._begun_again,
                tied=lambda request, step: bool(step.rivals) and not request.take_over,
                about=lambda request: request.step,
                gives_way=lambda request, step: EndStep(request.space, request.thread, request.step, step.attempt, "withdrawn"),
                unknown=lambda request, why: (
                    f"the intent of step {request.step!r} is written, but it is not known whether another attempt began at "
                    f"the same time: {why} Begin it again with the same attempt."
                ),
            )
        }

    # ── at the edge ───────────────────────────────────────────────────────────

    def _check_begin(self, request: BeginStep) -> None:
        _check_names(request.thread, request.step)
        check_name("step", request.name)
        if request.attempt:
            check_key("attempt", request.attempt)
        check_text(request.holder, "a holder")
        if request.parent:
            check_key("step key", request.parent)
        if request.compensation:
            check_name("compensation", request.compensation)
        if request.attempts < 0:
            raise InvalidInput("attempts must be at least 1, or 0 for the node's bound. Nothing was written.", field="attempts")
        if request.arguments:
            self._check_value(request.arguments, "a step's arguments")

    def _check_progress(self, request: ProgressStep) -> None:
        _check_names(request.thread, request.step)
        if request.attempt:
            check_key("attempt", request.attempt)
        self._check_small(request.progress, "progress")

    def _check_end(self, request: EndStep) -> None:
        _check_names(request.thread, request.step)
        _check_one_of("outcome", request.outcome, _OUTCOMES)
        if request.attempt:
            check_key("attempt", request.attempt)
        if request.outcome == "result":
            self._check_value(request.value, "a result")
        elif request.value:
            self._check_small(request.value, "an error")

    def _check_resolve(self, request: ResolveStep) -> None:
        _check_names(request.thread, request.step)
        _check_one_of("how", request.how, _RESOLUTIONS)
        check_text(request.by, "an author")
        check_text(request.reason, "a reason")
        if request.how == "result":
            self._check_value(request.value, "a result")

    def _check_value(self, packed: bytes, what: str) -> None:
        values.check(packed)
        check_size(self._config, len(packed), what)

    def _check_small(self, packed: bytes, what: str) -> None:
        values.check(packed)
        bound = STEP_PROGRESS_BYTES_MAX
        if len(packed) > bound:
            raise TooLarge(f"{what} of a step may have at most {bound} bytes; this has {len(packed)}. Nothing was written.")

    # ── writes ────────────────────────────────────────────────────────────────

    def _begin(self, context: WriteContext, request: BeginStep) -> Step:
        """Write an intent if the law allows it; the reply says whether this attempt has begun.

        Raises:
            KeyReused: the key belongs to a step with another name or other arguments.
            ThreadHeld: the thread is paused or waiting, and the step is not settled.
        """
        rows = context.rows
        attempt = request.attempt or context.key or context.stamp.pack_position().hex()
        digest = sha256(request.arguments).digest() if request.arguments else b""
        entry = step_log.find(rows, request.step)
        if entry is not None:
            _check_same(entry, request, digest)
            if entry.state in ("done", "abandoned") or entry.holds(attempt):
                return shown(rows, request.step, entry, attempt=attempt)
        if step_log.is_held(current := step_log.current(rows)):
            assert current is not None
            raise ThreadHeld(
                f"thread {request.thread!r} is {current.status}"
                + (f" by {current.by}" if current.by else "")
                + (f" ({current.reason[:500]})" if current.reason else "")
                + ". Nothing was written. Wait until the thread is approved or resumed.",
                status=current.status,
                reason=current.reason,
                by=current.by,
            )
        if entry is not None and not self._may_begin(entry, request):
            return shown(rows, request.step, entry)
        takes = () if entry is None else tuple(sorted(known.id for known in entry.open_attempts))
        change = step_log.Intend(
            request.step,
            request.name,
            attempt,
            digest,
            holder=request.holder,
            parent=request.parent,
            compensation=request.compensation,
            takes=takes,
        )
        entry = context.apply(change, Blobs(request.arguments) if digest else NOTHING)
        return shown(rows, request.step, entry, attempt=attempt)

    def _may_begin(self, entry: StepEntry, request: BeginStep) -> bool:
        if entry.state == "open" and not request.take_over:
            return False
        allowed = min(request.attempts or STEP_ATTEMPTS_MAX, STEP_ATTEMPTS_MAX)
        return len(entry.failures) < allowed and len(entry.attempts) < STEP_ATTEMPTS_MAX

    def _begun_again(self, view: View, request: BeginStep, begun: Step) -> Step:
        entry = step_log.find(view.rows, request.step)
        assert entry is not None
        return shown(view.rows, request.step, entry, attempt=begun.attempt)

    def _progress(self, context: WriteContext, request: ProgressStep) -> Step:
        """Record the progress of an attempt.

        Raises:
            NotFound: there is no such step, or no such attempt of it.
            StepSettled: no attempt is named, and not exactly one is open.
        """
        entry = _found(context.rows, request)
        attempt = request.attempt or _only_open(entry, request)
        _check_attempt(entry, request, attempt)
        change = step_log.Progress(request.step, attempt, request.progress)
        entry = context.apply(change)
        return shown(context.rows, request.step, entry, attempt=attempt)

    def _end(self, context: WriteContext, request: EndStep) -> Step:
        """Record how an attempt ended; a result that is already recorded is not recorded again.

        Raises:
            NotFound: there is no such step, or no such attempt of it.
            StepSettled: no attempt is named, and not exactly one is open.
        """
        rows = context.rows
        entry = _found(rows, request)
        attempt = request.attempt or _only_open(entry, request)
        _check_attempt(entry, request, attempt)
        if request.outcome == "result":
            digest = sha256(request.value).digest()
            if all(result.digest != digest for result in entry.results):
                result = step_log.Result(request.step, attempt, digest)
                entry = context.apply(result, Blobs(request.value))
        elif all((end.attempt, end.kind) != (attempt, request.outcome) for end in entry.ends):
            end = step_log.End(request.step, attempt, request.outcome, request.value)
            entry = context.apply(end)
        return shown(rows, request.step, entry)

    def _resolve(self, context: WriteContext, request: ResolveStep) -> Step:
        """Record what a person or another program decides about a step, with an event in the journal.

        Raises:
            NotFound: there is no such step.
            StepSettled: it has a result, or is abandoned and the request is to abandon it.
        """
        rows = context.rows
        entry = _found(rows, request)
        if entry.state == "done" or (entry.state == "abandoned" and request.how == "abandon"):
            raise StepSettled(
                f"step {request.step!r} of thread {request.thread!r} is {entry.state}. Nothing was written. "
                "Read it, and use a new key to run it again.",
                key=request.step,
                state=entry.state,
            )
        if request.how == "result":
            digest = sha256(request.value).digest()
            result = step_log.Result(request.step, "", digest, request.by)
            entry = context.apply(result, Blobs(request.value))
        else:
            there = tuple(attempt.id for attempt in entry.attempts)
            key = context.implied_key
            decision = step_log.Decide(request.step, there, request.how, by=request.by, reason=request.reason, key=key)
            entry = context.apply(decision)
        fields = {"step": request.step, "how": request.how, "by": request.by, "reason": request.reason}
        tell(context, "step-resolved", fields)
        return shown(rows, request.step, entry)

    # ── reads ─────────────────────────────────────────────────────────────────

    def _read(self, view: View, request: ReadStep) -> Step:
        """One step.

        Raises:
            NotFound: there is no such step.
        """
        return shown(view.rows, request.step, _found(view.rows, request))

    def _list(self, view: View, request: ListSteps) -> Listed:
        limit = min(max(1, request.limit), self._config.page_items_max)
        items: list[Step] = []
        size = 0
        for _, step in step_log.listing(view.rows, only_open=request.only_open, after=_position(request.after)):
            if len(items) == limit or size > PAGE_BYTES_MAX:
                return Listed(items, more=True)
            entry = step_log.find(view.rows, step)
            assert entry is not None
            items.append(shown(view.rows, step, entry))
            size += len(items[-1].result) + len(items[-1].arguments) + 200 * (1 + len(entry.attempts))
        return Listed(items, more=False)


def shown(rows: Rows, step: str, entry: StepEntry, *, attempt: str = "") -> Step:
    """The step as clients get it. `attempt` is the caller's own: `begun` is true if that attempt is open."""
    first, result = entry.first, entry.results[0] if entry.results else None
    is_open = [known.id for known in entry.open_attempts] if entry.state == "open" else []
    begun = attempt in is_open and all(end.attempt != attempt for end in entry.ends)
    return Step(
        key=step,
        position=first.position.hex(),
        name=first.name,
        state=entry.state,
        begun_ms=first.wall_ms,
        ended_ms=0 if result is None else result.wall_ms,
        result_position="" if result is None else result.position.hex(),
        arguments=step_log.content(rows, step, first.digest) if first.digest else b"",
        result=b"" if result is None else step_log.content(rows, step, result.digest),
        result_by="" if result is None else result.by,
        parent=first.parent,
        compensation=first.compensation,
        failures=len(entry.failures),
        attempts=[_attempt(entry, known) for known in entry.attempts],
        conflicts=[
            StepResult(step_log.content(rows, step, other.digest), other.attempt, other.by, other.wall_ms)
            for other in entry.results[1:]
        ],
        begun=begun,
        rivals=[known for known in is_open if known != attempt] if begun else [],
        attempt=attempt if begun else "",
    )


def _attempt(entry: StepEntry, attempt: step_log.Attempt) -> StepAttempt:
    """An attempt as clients get it. Its own result or end comes before the decisions of others."""
    result = next((result for result in entry.results if result.attempt == attempt.id), None)
    ends = {end.kind: end for end in entry.ends if end.attempt == attempt.id}
    end = next((ends[kind] for kind in _SAID if kind in ends), None)
    decision = next((decision for decision in reversed(entry.decisions) if attempt.id in decision.attempts), None)
    last = result or end or decision
    reached = next((reached.progress for reached in entry.progress if reached.attempt == attempt.id), b"")
    return StepAttempt(
        attempt.id,
        "result" if result is not None else end.kind if end is not None else decision.kind if decision is not None else "open",
        attempt.holder,
        attempt.wall_ms,
        0 if last is None else last.wall_ms,
        b"" if end is None else end.detail,
        reached,
        decision.by if decision is not None and last is decision else "",
    )


def _found(rows: Rows, request: ProgressStep | EndStep | ResolveStep | ReadStep) -> StepEntry:
    entry = step_log.find(rows, request.step)
    if entry is None:
        raise NotFound(f"thread {request.thread!r} has no step {request.step!r}. Nothing was written.")
    return entry


def _only_open(entry: StepEntry, request: ProgressStep | EndStep) -> str:
    found = entry.open_attempts
    if len(found) != 1:
        raise StepSettled(
            f"step {request.step!r} of thread {request.thread!r} is {entry.state}, and has {len(found)} open attempts; "
            "without an attempt's name, exactly one attempt must be open. Nothing was written. Read the step and name one.",
            key=request.step,
            state=entry.state,
        )
    return found[0].id


def _check_attempt(entry: StepEntry, request: ProgressStep | EndStep, attempt: str) -> None:
    if not entry.holds(attempt):
        raise NotFound(f"step {request.step!r} of thread {request.thread!r} has no attempt {attempt!r}. Nothing was written.")


def _check_same(entry: StepEntry, request: BeginStep, digest: bytes) -> None:
    first = entry.first
    if first.name != request.name:
        raise KeyReused(
            f"key {request.step!r} belongs to step {first.name!r} of thread {request.thread!r}, not {request.name!r}. "
            "Nothing was written. Use a new key for another step."
        )
    if digest and first.digest and digest != first.digest:
        raise KeyReused(
            f"step {request.step!r} of thread {request.thread!r} was begun with other arguments. Nothing was written. "
            "Use a new key for another call."
        )


def _check_names(thread: str, step: str) -> None:
    check_name("thread", thread)
    check_key("step key", step)


def _check_one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{field} must be one of {', '.join(allowed)}; got {value!r}. Nothing was written.", field=field)


def _position(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidInput("after must be the position of a step from an earlier answer.", field="after") from None
