"""A thread's steps: effects that are not repeated after a crash.

Laws:
- The intent is written, and held by a quorum, before the effect; the result is written after it. A
  step that has a result is not called again by any client.
- A step with an intent but no end may have happened. It is called again only if its
  caller says that it is idempotent; otherwise `StepUnresolved` is raised.
- An exception ends an attempt: the step has failed, and may be called again. A crash or a
  cancellation does not end it: the outcome is unknown.
- A caller that may have a rival does not call, and withdraws its intent.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal

from shoal import values
from shoal.client.arguments import named
from shoal.errors import InvalidInput
from shoal.kinds.step.flows.steps import StepRecord, record_of, refusal, steps
from shoal.kinds.step.handle.step_log import Beginning, Step, StepLog, running
from shoal.names import KEY_BYTES_MAX, check_key
from shoal.protocol import requests
from shoal.protocol.requests import Durability

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
