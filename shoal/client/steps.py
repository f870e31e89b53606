"""A thread's steps: effects that are not repeated because a process died.

Laws:
- The intent is written, and held by a quorum, before the effect; its result after. A
  step that has a result is not called again, by anyone.
- What has an intent and no end may have happened. It is called again only where its
  caller says that it is idempotent; everybody else is told (`StepUnresolved`).
- An exception is an end: the step has failed, and may be called again. What cuts the
  call off (a crash, a cancellation) is none: nobody knows.
- Whoever is not sure to be alone does not call: it withdraws its intent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Literal
from weakref import WeakValueDictionary

from shoal import values
from shoal.client.attempts import StepRecord, record_of, refusal
from shoal.client.connection import Connection
from shoal.client.retrying import delays, is_transient, paused
from shoal.errors import InvalidInput, OutcomeUnknown, ShoalError, ThreadHeld
from shoal.names import KEY_BYTES_MAX, check_key
from shoal.protocol import requests
from shoal.protocol.requests import Durability, EndStep

COMPENSATED = "/compensation"
"""After the key of a step, the key of the step that undoes it."""

_MESSAGE_CHARACTERS_MAX = 4000
_within: ContextVar[tuple[tuple[str, str, str], ...]] = ContextVar("shoal_steps", default=())
"""The steps that this code runs in, the innermost last: space, thread, key."""


class Step:
    """A step that is being carried out, as its call sees it."""

    def __init__(self, ledger: Ledger, record: StepRecord, attempt: str, *, number: int, done: bool) -> None:
        self._ledger = ledger
        self._attempt_id = attempt
        self.record = record
        self.attempt = number  # From 1.
        self.done = done  # There is a result: nothing is to be called.
        self._result: Any = None
        self.is_known = False  # Its result was handed to a batch: the effect has happened, whatever becomes of that.

    def __repr__(self) -> str:
        return f"Step({self.name!r}, key={self.key!r}, attempt={self.attempt}, done={self.done})"

    @property
    def key(self) -> str:
        """Hand it to the other side as its idempotency key, where it takes one."""
        return self.record.key

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def result(self) -> Any:
        """The stored result of a step that is done; else what was set, to be stored at the end of the block."""
        return self.record.result if self.done else self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.done:
            raise InvalidInput(f"step {self.key!r} is done: it has a result already. Nothing was written. Look at `step.done`.")
        self._result = value

    async def progress(self, value: Any) -> None:
        """Write how far this attempt is; the next attempt finds it in `step.record.progress`.

        Raises:
            InvalidValue, TooLarge: it cannot be stored.
        """
        packed = values.encode(value, where="progress")
        await self._ledger.write(
            requests.ProgressStep(self._ledger.space, self._ledger.thread, self.key, self._attempt_id, packed)
        )

    async def finish(self, value: Any) -> None:
        """Write the result, and try as long as a request may take."""
        packed = values.encode(value, where="result")
        await self._end("result", packed)

    async def fail(self, error: BaseException) -> None:
        told = {"type": type(error).__qualname__, "message": str(error)[:_MESSAGE_CHARACTERS_MAX]}
        await self._end("error", values.encode(told))

    def result_request(self, space: str, thread: str, value: Any) -> EndStep:
        """What writes the result in a batch; `settle` is to be called with its answer.

        Raises:
            InvalidInput: this is a step of another thread, or it has a result.
            InvalidValue: it cannot be stored.
        """
        if (space, thread) != (self._ledger.space, self._ledger.thread):
            raise InvalidInput(
                f"step {self.key!r} is one of thread {self._ledger.thread!r} of space {self._ledger.space!r}, not of "
                f"{thread!r} of {space!r}. Nothing was written."
            )
        self.result = value
        request = self._ending("result", values.encode(value, where="result"))
        self.is_known = True
        return request

    def settle(self, reply: requests.Step) -> None:
        self.record = record_of(reply)
        self.done = self.record.state == "done"

    def _ending(self, outcome: Literal["result", "error"], packed: bytes) -> EndStep:
        return EndStep(self._ledger.space, self._ledger.thread, self.key, self._attempt_id, outcome, packed)

    async def _end(self, outcome: Literal["result", "error"], packed: bytes) -> None:
        self.record = await self._ledger.end(self._ending(outcome, packed))
        self.done = self.record.state == "done"


class Beginning:
    """`async with thread.begin("name", key="k") as step`: the intent at its start, the result or the error at its end."""

    def __init__(self, ledger: Ledger, request: requests.BeginStep, durability: Durability | None) -> None:
        self._ledger = ledger
        self._request = request
        self._durability = durability
        self._step: Step | None = None
        self._lock: asyncio.Lock | None = None
        self._token: Token[tuple[tuple[str, str, str], ...]] | None = None

    async def __aenter__(self) -> Step:
        """
        Raises:
            StepUnresolved, StepFailed, StepAbandoned: it is not to be called.
            KeyReused: the key is another step's.
            NoQuorum: too few owners can be reached to know, and to tell. Nothing was written.
            OutcomeUnknown: whether the intent is alone is not known; it was withdrawn, as far as possible.
        """
        outer, place = _within.get(), (self._ledger.space, self._ledger.thread, self._request.step)
        if place in outer:
            raise InvalidInput(f"step {self._request.step!r} is begun within itself. Nothing was written. Use another key.")
        self._lock = self._ledger.turn_of(self._request.step)
        await self._lock.acquire()
        try:
            self._step = await self._ledger.begun(self._request, self._durability)
        except BaseException:
            self._lock.release()
            raise
        self._token = _within.set((*outer, place))
        return self._step

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        assert self._step is not None
        assert self._lock is not None
        assert self._token is not None
        with suppress(ValueError):  # Entered and left in two tasks, as the blocking store does: nothing is within it.
            _within.reset(self._token)
        try:
            if self._step.done:
                return
            if error is None or self._step.is_known:
                await self._step.finish(self._step.result)
            elif isinstance(error, Exception):
                await self._step.fail(error)
        finally:
            self._lock.release()


class Ledger:
    """A thread's ledger, as one handle writes it. `ready` waits until the thread may go on."""

    def __init__(self, connection: Connection, space: str, thread: str, ready: Callable[[], Awaitable[None]]) -> None:
        self._connection = connection
        self.space = space
        self.thread = thread
        self.compensations: dict[str, Callable[..., Any]] = {}  # By recorded name: those that this handle has seen.
        self._ready = ready
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn_of(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def begun(self, request: requests.BeginStep, durability: Durability | None) -> Step:
        durability = durability or ("all" if self._connection.durability == "all" else "quorum")
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
                reply = await self._connection.write(request, key=None, durability=durability)
            except ThreadHeld:
                await self._ready()
            except (OutcomeUnknown, asyncio.CancelledError):
                await self._withdraw(request)  # Nothing was called.
                raise
            else:
                assert isinstance(reply, requests.Step)
                return reply

    async def _withdraw(self, request: requests.BeginStep) -> None:
        with suppress(ShoalError):
            await self.write(EndStep(self.space, self.thread, request.step, request.attempt, "withdrawn"))

    async def write(self, request: requests.ProgressStep | EndStep | requests.ResolveStep) -> StepRecord:
        reply = await self._connection.write(request, key=None, durability=None)
        assert isinstance(reply, requests.Step)
        return record_of(reply)

    async def end(self, request: EndStep) -> StepRecord:
        """Try for as long as a request may take: the effect has happened, and must not be lost for a full queue."""
        pauses = delays(self._connection.config)
        while True:
            try:
                return await self.write(request)
            except ShoalError as error:
                if not is_transient(error) or not await paused(pauses, error):
                    raise


class ThreadSteps:
    """What a `Thread` offers of its ledger."""

    space: str
    name: str
    _connection: Connection
    _ledger: Ledger

    # ── carrying out ──────────────────────────────────────────────────────────

    async def step(
        self,
        name: str,
        *,
        call: Callable[..., Any],
        key: str | None = None,
        arguments: Any = None,
        attempts: int | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        durability: Durability | None = None,
    ) -> Any:
        """Cause an effect once: write the intent, call, write the result, and return it. A step that is done is not called.

        `call` may be synchronous (it then runs on the loop) or not; it gets the `Step` if it
        takes an argument. Without a `key` the name is the key: once per thread. Concurrent
        calls of one key on this handle wait for the first. While the thread is paused or
        waiting, this waits.

        Args:
            arguments: Recorded with the intent; others under the same key are refused.
            attempts: After so many failures `StepFailed` is raised; else as many as the node allows.
            idempotent: Call it again also where an earlier attempt may have happened.
            compensate: What undoes it (`thread.compensate`), recorded by its name.
            durability: Of the intent: `quorum` unless the store's is `all`.

        Raises:
            StepUnresolved: an attempt has no end: it may have happened, or goes on elsewhere.
            StepFailed: it has failed as often as it may.
            StepAbandoned: a human decided that it is not to be done.
            KeyReused: the key is that of a step of another name, or with other arguments.
            NoQuorum: too few owners can be reached to know what was done. Nothing was called.
            InvalidValue: the result cannot be stored: it was called, and is unresolved.
            InvalidInput: `call` is no function. Nothing was written.
            Exception: whatever `call` raises, once that is written.
        """
        if not callable(call):
            raise InvalidInput(f"call is a function, which causes the effect; got {call!r:.100}. Nothing was written.")
        beginning = self.begin(
            name,
            key=key,
            arguments=arguments,
            attempts=attempts,
            idempotent=idempotent,
            compensate=compensate,
            durability=durability,
        )
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
        """The same as a context: `async with thread.begin("pay", key="k") as step: if not step.done: step.result = …`.

        A block that ends without an exception ends the step, also without a result.
        """
        key = check_key("step key", name if key is None else key)
        if attempts is not None and attempts < 1:
            raise InvalidInput(f"attempts must be at least 1; got {attempts}. Nothing was written.", field="attempts")
        compensation = ""
        if compensate is not None:
            if len(key.encode()) + len(COMPENSATED) > KEY_BYTES_MAX:
                bound = KEY_BYTES_MAX - len(COMPENSATED)
                raise InvalidInput(f"the key of a step that can be undone may have {bound} bytes. Nothing was written.")
            compensation = getattr(compensate, "__qualname__", type(compensate).__qualname__)
            self._ledger.compensations[compensation] = compensate
        mine = [outer[2] for outer in _within.get() if outer[:2] == (self.space, self.name)]
        request = requests.BeginStep(
            self.space,
            self.name,
            key,
            name,
            self._connection.entropy(16).hex(),
            holder=self._connection.holder,
            arguments=b"" if arguments is None else values.encode(arguments, where="arguments"),
            parent=mine[-1] if mine else "",
            compensation=compensation,
            attempts=attempts or 0,
            take_over=idempotent,
        )
        return Beginning(self._ledger, request, durability)

    # ── looking, and deciding ─────────────────────────────────────────────────

    async def steps(self, *, open: bool = False, stale: bool = False) -> AsyncIterator[StepRecord]:
        """All steps, or those that are `open`, in the order of their first intents. `stale`: see `Store`."""
        after = ""
        while True:
            page = await self._connection.read(requests.ListSteps(self.space, self.name, open, after), stale=stale)
            assert isinstance(page, requests.Steps)
            for found in page.items:
                yield record_of(found)
            if not page.more:
                return
            after = page.items[-1].position

    async def unresolved(self, *, stale: bool = False) -> list[StepRecord]:
        """The steps of which nobody knows how they ended, with `holder` and `since`; some may go on elsewhere."""
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
        """Settle a step: it has this result, may be called again, or is not to be done. The journal says who and why.

        Raises:
            NotFound: there is no such step.
            StepSettled: it has a result.
        """
        packed = values.encode(value, where="value") if how == "result" else b""
        key = step if isinstance(step, str) else step.key
        reply = await self._connection.write(
            requests.ResolveStep(self.space, self.name, key, how, packed, by, reason), key=None, durability=durability
        )
        assert isinstance(reply, requests.Step)
        return record_of(reply)

    async def compensate(self, compensations: Mapping[str, Callable[..., Any]] | None = None) -> list[str]:
        """Undo the steps that are done and say how, the last one completed first; return their keys.

        Each is undone as a step of its own, once. Callables are found by the recorded
        name, in `compensations` or among those that this handle has seen; one that takes an
        argument gets the step's result.

        Raises:
            StepUnresolved: one that could be undone has no end yet; nothing was called.
            InvalidInput: a callable is missing; nothing was called.
            Exception: whatever a compensation raises. Call this again to go on.
        """
        known = {**self._ledger.compensations, **(compensations or {})}
        there = [record async for record in self.steps() if record.compensation]
        for record in there:
            if record.state == "open":
                raise refusal(record)
        done = sorted((record for record in there if record.state == "done"), key=_completed, reverse=True)
        missing = sorted({record.compensation for record in done} - known.keys())
        if missing:
            raise InvalidInput(
                f"no callable is given for {', '.join(missing)}. Nothing was called. Give compensations={{name: …}}."
            )
        for record in done:
            undo = known[record.compensation]
            await self.step(record.compensation, key=record.key + COMPENSATED, call=_with_result(undo, record))
        return [record.key for record in done]


def _completed(record: StepRecord) -> str:
    return record._completed


def _with_result(undo: Callable[..., Any], record: StepRecord) -> Callable[[], Any]:
    return lambda: undo(record.result) if _takes_argument(undo) else undo()


async def _called(call: Callable[..., Any], step: Step) -> Any:
    outcome = call(step) if _takes_argument(call) else call()
    return await outcome if inspect.isawaitable(outcome) else outcome


def _takes_argument(call: Callable[..., Any]) -> bool:
    """Whether it must be given one: `lambda order=order: …` needs none."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # Some built-in functions have no signature.
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)
