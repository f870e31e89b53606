"""Save a thread's state automatically: at intervals, at the end of a block, and when the process is asked to stop.

    async with thread.autosave(lambda: agent.state, every=30, on_sigterm=True):
        await agent.run()

Laws:
- If all saves would be rejected, because the handle has not loaded the branch, the
  block does not begin.
- At the end of the block the state is saved once more, even if the block raised;
  after that the block's error is raised.
- No error is lost. After a temporary error (an unreachable node, a full queue) the save is
  repeated at the next interval and at the end. A lasting error, such as a branch that has
  moved or a value that cannot be stored, ends the saves and is raised at the end.
  If the block raised an error of its own, the lasting error is added to it as a note.
- With `on_sigterm` a SIGTERM cancels the block, which then ends as above, and the
  process exits with 143. Signal handlers belong to the process: one is set only on
  request, on the main thread, if there is no other, and removed at the end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shoal import values
from shoal.client.arguments import named
from shoal.errors import InvalidInput, Retryable

if TYPE_CHECKING:
    from shoal.kinds.thread.flows.checkpoints import Checkpoint

SIGTERM_EXIT = 128 + signal.SIGTERM

State = Mapping[str, Any]
Save = Callable[[State], Awaitable["Checkpoint"]]


@named
class Autosave:
    """A context that saves a thread's state; made by `Thread.autosave`."""

    def __init__(
        self,
        save: Save,
        state: Callable[[], State],
        *,
        begin: Callable[[], Awaitable[None]],
        every: float | None,
        on_change: bool,
        on_sigterm: bool,
    ) -> None:
        if every is not None and every <= 0:
            raise InvalidInput(f"every must be a number of seconds greater than 0; got {every}. Nothing was written.")
        if not callable(state):
            raise InvalidInput(f"state must be a function that returns the state; got {state!r:.100}. Nothing was written.")
        self._save = save
        self._state = state
        self._begin = begin
        self._every = every
        self._on_change = on_change
        self._on_sigterm = on_sigterm
        self._saved: bytes | None = None  # The state that was saved last.
        self._turn = asyncio.Lock()
        self._turns: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._over = asyncio.Event()
        self._asked_to_stop = False

    @property
    def error(self) -> Exception | None:
        """The error of the last save; None if it succeeded."""
        return self._error

    async def save(self) -> Checkpoint | None:
        """Save now. Return None if nothing has changed since the last save, and `on_change` is set.

        Raises:
            ShoalError: as `Thread.save` does.
        """
        # A cancelled save may still be applied: it continues to its end, so that the next one builds on it.
        saving = asyncio.ensure_future(self._save_once())
        saving.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(saving)

    async def _save_once(self) -> Checkpoint | None:
        async with self._turn:
            state = self._state()
            if not isinstance(state, Mapping):
                raise InvalidInput(
                    f"state must return a mapping of channel names to values; got {type(state).__name__}. Nothing was written."
                )
            packed = values.encode(dict(state), where="state")
            if self._on_change and packed == self._saved:
                self._error = None
                return None
            try:
                checkpoint = await self._save(state)
            except Exception as error:
                self._error = error
                raise
            self._saved, self._error = packed, None
            return checkpoint

    async def __aenter__(self) -> Self:
        await self._begin()
        if self._on_sigterm:
            self._watch_sigterm()
        if self._every is not None:
            self._turns = asyncio.ensure_future(self._run(self._every))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._over.set()
            if self._turns is not None:
                await self._turns
            await self._last(error)
        finally:
            if self._on_sigterm:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        if self._asked_to_stop and isinstance(error, asyncio.CancelledError):
            raise SystemExit(SIGTERM_EXIT) from None

    async def _last(self, error: BaseException | None) -> None:
        lasting = self._error if self._error is not None and not _passes(self._error) else None
        try:
            if lasting is not None:
                raise lasting
            await self.save()
        except Exception as unsaved:
            if error is None:
                raise
            error.add_note(f"And the state could not be saved: {type(unsaved).__name__}: {unsaved}")
            if self._asked_to_stop:
                raise  # Nobody sees the note of a cancellation.

    async def _run(self, every: float) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._over.wait()
                    return
            try:
                await self.save()
            except Exception as error:
                self._error = error
                if not _passes(error):
                    return

    def _watch_sigterm(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidInput("on_sigterm works only on the main thread. Nothing was written. Omit it.")
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            raise InvalidInput(
                "SIGTERM already has a handler. Nothing was written. Omit on_sigterm, and cancel the block from "
                "that handler; the block saves its state when it ends."
            )
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if not self._asked_to_stop:  # At a second signal, it is already at its last save.
                self._asked_to_stop = True
                task.cancel()

        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        except NotImplementedError:
            raise InvalidInput("on_sigterm needs a POSIX event loop. Nothing was written. Omit it.") from None


def _passes(error: Exception) -> bool:
    return isinstance(error, Retryable)
