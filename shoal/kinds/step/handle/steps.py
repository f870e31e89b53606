"""A thread's steps, which are effects that are not repeated after a crash, and the log of them.

A thread's steps: effects that are not repeated after a crash.

Laws:
- The intent is written, and held by a quorum, before the effect; the result is written after it. A
  step that has a result is not called again by any client.
- A step with an intent but no end may have happened. It is called again only if its
  caller says that it is idempotent; otherwise `StepUnresolved` is raised.
- An exception ends an attempt: the step has failed, and may be called again. A crash or a
  cancellation does not end it: the outcome is unknown.
- A caller that may have a rival does not call, and withdraws its intent.

The log of a thread's steps, as one handle writes it: intents, attempts, results.

Laws:
- A `Step` shows one attempt to the function that is called. The attempt ends with a result, with an error, or not
  at all, if the process dies or the call is cancelled.
- The end of an attempt is written with retries for as long as a request may take, because the effect has happened.
  A result that cannot be stored is written as text, and the step stays open until a person resolves it.
- If an intent has a rival, or if that is unknown, it is withdrawn: nothing was called.
- Attempts of one key on one handle take turns; a step cannot begin within itself.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Literal
from weakref import WeakValueDictionary

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import StoreConnection, delays, paused
from shoal.errors import InvalidInput, ShoalError, ThreadHeld
from shoal.kinds.step.flows import StepRecord, not_kept, record_of, refusal, steps
from shoal.names import KEY_BYTES_MAX, check_key
from shoal.protocol import requests
from shoal.protocol.requests import Durability, EndStep
from shoal.traces.agents import ToolSpan

_MESSAGE_CHARACTERS_MAX = 4000
running: ContextVar[tuple[tuple[str, str, str], ...]] = ContextVar("shoal_steps", default=())
"""The steps that this code runs in, the innermost last: space, thread, key."""


def _text(told: str) -> str:
    """The text shortened, with everything replaced that cannot be stored."""
    return told[:_MESSAGE_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()


_shown = reprlib.Repr()
vars(_shown).update({"maxstring": _MESSAGE_CHARACTERS_MAX, "maxother": _MESSAGE_CHARACTERS_MAX, "maxdict": 50, "maxlist": 50})


def _shown_text(value: Any) -> str:
    """A value for people, shortened."""
    try:
        return _shown.repr(value)
    except Exception as error:  # An integer of too many digits, for one.
        return f"a {type(value).__qualname__}, of which repr raised {type(error).__qualname__}"


@named
class Step:
    """A step that is being carried out, as the called function sees it."""

    def __init__(self, log: StepLog, record: StepRecord, attempt: str, *, number: int, done: bool) -> None:
        self._log = log
        self._attempt_id = attempt
        self.record = record
        self.attempt = number  # From 1.
        self.done = done  # Whether there is a result, so that nothing must be called.
        self._result: Any = None
        self.is_unkept = False  # Whether it has ended with a result that could not be stored.
        self.is_known = False  # Whether a batch has its result: the effect has happened, even if the batch fails.

    def __repr__(self) -> str:
        return f"Step({self.name!r}, key={self.key!r}, attempt={self.attempt}, done={self.done})"

    @property
    def key(self) -> str:
        """The step's key. Pass it to the other side as the idempotency key, if it accepts one."""
        return self.record.key

    @property
    def name(self) -> str:
        """The name of the effect."""
        return self.record.name

    @property
    def result(self) -> Any:
        """The stored result of a step that is done; else the value that was set, to be stored at the end of the block."""
        return self.record.result if self.done else self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.done:
            raise InvalidInput(
                f"step {self.key!r} is done and already has a result. Nothing was written. Check `step.done` first."
            )
        self._result = value

    async def progress(self, value: Any) -> None:
        """Store the progress of this attempt; the next attempt finds it in `step.record.progress`.

        Raises:
            InvalidValue, TooLarge: it cannot be stored.
        """
        packed = values.encode(value, where="progress")
        await self._log.write(requests.ProgressStep(self._log.space, self._log.thread, self.key, self._attempt_id, packed))

    async def finish(self, value: Any) -> None:
        """Write the result, with retries for as long as a request may take.

        Raises:
            ResultNotKept: it cannot be stored; it was written as text.
        """
        try:
            await self._end("result", values.encode(value, where="result"))
        except InvalidInput as refusal:  # Nothing is written yet.
            # The intent is written, the effect has happened, and the result is about to be written as text.
            why = refusal.message.replace(" Nothing was written.", "")
            told = {"type": type(value).__qualname__, "message": why, "result": _shown_text(value)}
            await self._end("unkept", values.encode({name: _text(part) for name, part in told.items()}))
            self.is_unkept = True
            attempt = next(attempt for attempt in self.record.attempts if attempt.id == self._attempt_id)
            error = not_kept(self.record, attempt)
            error.written = "yes"
            raise error from refusal

    async def fail(self, error: BaseException) -> None:
        """Write that this attempt failed, with the error's type and message."""
        told = {"type": type(error).__qualname__, "message": _text(str(error))}
        await self._end("error", values.encode(told))

    def result_request(self, space: str, thread: str, value: Any) -> EndStep:
        """The request that writes the result in a batch; call `settle` with its answer.

        Raises:
            InvalidInput: this is a step of another thread, or it has a result.
            InvalidValue: `value` cannot be stored.
        """
        if (space, thread) != (self._log.space, self._log.thread):
            raise InvalidInput(
                f"step {self.key!r} is one of thread {self._log.thread!r} of space {self._log.space!r}, not of "
                f"{thread!r} of {space!r}. Nothing was written."
            )
        self.result = value
        self.is_known = True  # Even if it cannot be stored: the end of the block reports that.
        return self._ending("result", values.encode(value, where="result"))

    def settle(self, reply: requests.Step) -> None:
        """Process the answer to the batch that wrote the result."""
        self.record = record_of(reply)
        self.done = self.record.state == "done"

    def _ending(self, outcome: Literal["result", "error", "unkept"], packed: bytes) -> EndStep:
        return EndStep(self._log.space, self._log.thread, self.key, self._attempt_id, outcome, packed)

    async def _end(self, outcome: Literal["result", "error", "unkept"], packed: bytes) -> None:
        self.record = await self._log.end(self._ending(outcome, packed))
        self.done = self.record.state == "done"


class Beginning:
    """`async with thread.begin("name", key="k") as step` writes the intent at its start and the result or error at its end."""

    def __init__(self, log: StepLog, request: requests.BeginStep, durability: Durability | None) -> None:
        self._log = log
        self._request = request
        self._durability = durability
        self._step: Step | None = None
        self._lock: asyncio.Lock | None = None
        self._token: Token[tuple[tuple[str, str, str], ...]] | None = None
        self._span: ToolSpan | None = None

    async def __aenter__(self) -> Step:
        """Write the intent.

        Raises:
            StepUnresolved, StepFailed, StepAbandoned: the step must not run.
            KeyReused: the key belongs to another step.
            NoQuorum: too few owners can be reached. Nothing was written.
            OutcomeUnknown: the intent may have a rival; it was withdrawn, as far as possible.
        """
        outer, place = running.get(), (self._log.space, self._log.thread, self._request.step)
        if place in outer:
            raise InvalidInput(f"step {self._request.step!r} was begun within itself. Nothing was written. Use another key.")
        self._log.connection.check_home()
        self._lock = self._log.turn_of(self._request.step)
        await self._lock.acquire()
        self._span = ToolSpan(self._request.name, key=self._request.step, thread=self._log.thread)
        try:
            self._step = await self._log.begun(self._request, self._durability)
        except BaseException as error:
            self._span.end(error)
            self._lock.release()
            raise
        self._span.begun(attempt=self._step.attempt, is_done=self._step.done)
        self._token = running.set((*outer, place))
        return self._step

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._step is not None
        assert self._lock is not None
        assert self._token is not None
        assert self._span is not None
        with suppress(ValueError):  # The blocking store enters and leaves in two tasks; nothing runs within it then.
            running.reset(self._token)
        try:
            if self._step.done or self._step.is_unkept:
                return
            if error is None or self._step.is_known:
                await self._step.finish(self._step.result)
            elif isinstance(error, Exception):
                await self._step.fail(error)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._span.end(error)
            self._lock.release()


class StepLog:
    """The log of a thread's steps, as one handle writes it. `ready` waits until the thread may continue."""

    def __init__(self, connection: StoreConnection, space: str, thread: str, ready: Callable[[], Awaitable[None]]) -> None:
        self.connection = connection
        self.space = space
        self.thread = thread
        self.compensations: dict[str, Callable[..., Any]] = {}  # The functions that this handle has seen, by recorded name.
        self._ready = ready
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn_of(self, key: str) -> asyncio.Lock:
        """The lock of a key: attempts of this handle take turns."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def begun(self, request: requests.BeginStep, durability: Durability | None) -> Step:
        """Write an intent, waiting while the thread is held, and return the step to carry out or the finished one.

        Raises:
            StepUnresolved, StepFailed, StepAbandoned: the step must not run; an intent with a rival was withdrawn.
        """
        durability = durability or ("all" if self.connection.durability == "all" else "quorum")
        reply = await self._asked(request, durability)
        record = record_of(reply)
        number = len(record.attempts)
        if reply.state == "done":
            return Step(self, record, request.attempt, number=number, done=True)
        if reply.begun and (not reply.rivals or request.take_over):
            return Step(self, record, request.attempt, number=number, done=False)
        if reply.begun:
            await self._withdraw(request)
        raise refusal(record, own=request.attempt)

    async def _asked(self, request: requests.BeginStep, durability: Durability) -> requests.Step:
        while True:
            try:
                reply = await self.connection.write(request, key=None, durability=durability)
            except ThreadHeld:
                await self._ready()
            except (ShoalError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) or error.written == "unknown":
                    await self._withdraw(request)  # Nothing was called.
                raise
            else:
                return reply

    async def _withdraw(self, request: requests.BeginStep) -> None:
        with suppress(ShoalError):
            await self.write(EndStep(self.space, self.thread, request.step, request.attempt, "withdrawn"))

    async def write(self, request: requests.ProgressStep | EndStep | requests.ResolveStep) -> StepRecord:
        """Write to the log once."""
        reply = await self.connection.write(request, key=None, durability=None)
        return record_of(reply)

    async def end(self, request: EndStep) -> StepRecord:
        """Write with retries for as long as a request may take, because the effect has happened."""
        pauses = delays(self.connection.config)
        while True:
            try:
                return await self.write(request)
            except ShoalError as error:
                if not error.retryable or not await paused(pauses, error):
                    raise


COMPENSATED = "/compensation"
"""After the key of a step, the key of the step that undoes it."""


@named
class ThreadSteps:
    """The part of a thread's handle for its steps."""

    def __init__(self, log: StepLog) -> None:
        self._log = log

    async def run(self, beginning: Beginning, call: Callable[..., Any]) -> Any:
        """Carry out a step: see `Thread.step`.

        Raises:
            InvalidInput: `call` is not a function. Nothing was written.
        """
        if not callable(call):
            raise InvalidInput(f"call must be a function that performs the effect; got {call!r:.100}. Nothing was written.")
        async with beginning as step:
            if not step.done:
                step.result = await _called(call, step)
        return step.record.result

    def begin(
        self,
        name: str,
        *,
        key: str | None = None,
        arguments: Any = None,
        attempts: int | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        durability: Durability | None = None,
    ) -> Beginning:
        """A step as a context: `async with thread.begin("pay", key="k") as step: if not step.done: step.result = …`.

        A block that ends without an exception ends the step, even if no result was set. See `Thread.step`.
        """
        key = check_key("step key", name if key is None else key)
        if attempts is not None and attempts < 1:
            raise InvalidInput(f"attempts must be at least 1; got {attempts}. Nothing was written.", field="attempts")
        compensation = ""
        if compensate is not None:
            if len(key.encode()) + len(COMPENSATED) > KEY_BYTES_MAX:
                bound = KEY_BYTES_MAX - len(COMPENSATED)
                raise InvalidInput(
                    f"the key of a step with a compensation may have at most {bound} bytes. Nothing was written."
                )
            compensation = getattr(compensate, "__qualname__", type(compensate).__qualname__)
            self._log.compensations[compensation] = compensate
        mine = [outer[2] for outer in running.get() if outer[:2] == (self._log.space, self._log.thread)]
        request = requests.BeginStep(
            self._log.space,
            self._log.thread,
            key,
            name,
            self._log.connection.entropy(16).hex(),
            holder=self._log.connection.holder,
            arguments=b"" if arguments is None else values.encode(arguments, where="arguments"),
            parent=mine[-1] if mine else "",
            compensation=compensation,
            attempts=attempts or 0,
            take_over=idempotent,
        )
        return Beginning(self._log, request, durability)

    # ── looking, and deciding ─────────────────────────────────────────────────

    async def steps(self, *, open: bool = False, stale: bool = False) -> AsyncIterator[StepRecord]:
        """Yield all steps, or only open ones if `open`, in the order of their first intents. `stale`: see `Store`."""
        log = self._log
        async for record in steps(log.connection, log.space, log.thread, open=open, stale=stale):
            yield record

    async def unresolved(self, *, stale: bool = False) -> list[StepRecord]:
        """The steps whose outcome is unknown, with `holder` and `since`; some may still be running elsewhere."""
        return [record async for record in self.steps(open=True, stale=stale)]

    async def resolve(
        self,
        step: str | StepRecord,
        how: Literal["result", "retry", "abandon"],
        *,
        value: Any = None,
        by: str = "",
        reason: str = "",
        durability: Durability | None = None,
    ) -> StepRecord:
        """Settle a step: give it a result, allow it to be called again, or abandon it. The journal records author and reason.

        Raises:
            NotFound: there is no such step.
            StepSettled: it has a result.
        """
        packed = values.encode(value, where="value") if how == "result" else b""
        key = step if isinstance(step, str) else step.key
        reply = await self._log.connection.write(
            requests.ResolveStep(self._log.space, self._log.thread, key, how, packed, by, reason),
            key=None,
            durability=durability,
        )
        return record_of(reply)

    async def compensate(self, compensations: Mapping[str, Callable[..., Any]] | None = None) -> list[str]:
        """Undo the finished steps that have a compensation, the last one completed first; return their keys.

        Each compensation runs once, as a step of its own. Functions are found by the recorded
        name, in `compensations` or among those that this handle has seen; one that takes an
        argument gets the step's result.

        Raises:
            StepUnresolved: a step with a compensation has not ended; nothing was called.
            InvalidInput: a function is missing; nothing was called.
            Exception: an error of a compensation. Call this again to continue.
        """
        known = {**self._log.compensations, **(compensations or {})}
        there = [record async for record in self.steps() if record.compensation]
        for record in there:
            if record.state == "open":
                raise refusal(record)
        done = sorted((record for record in there if record.state == "done"), key=_completed, reverse=True)
        missing = sorted({record.compensation for record in done} - known.keys())
        if missing:
            raise InvalidInput(
                f"no callable was given for {', '.join(missing)}. Nothing was called. Pass compensations={{name: …}}."
            )
        for record in done:
            undo = known[record.compensation]
            await self.run(self.begin(record.compensation, key=record.key + COMPENSATED), _with_result(undo, record))
        return [record.key for record in done]


def _completed(record: StepRecord) -> str:
    return record._completed


def _with_result(undo: Callable[..., Any], record: StepRecord) -> Callable[[], Any]:
    return lambda: undo(record.result) if _takes_argument(undo) else undo()


async def _called(call: Callable[..., Any], step: Step) -> Any:
    outcome = call(step) if _takes_argument(call) else call()
    return await outcome if inspect.isawaitable(outcome) else outcome


def _takes_argument(call: Callable[..., Any]) -> bool:
    """Whether it requires an argument; `lambda order=order: …` does not."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # Some built-in functions have no signature.
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)
