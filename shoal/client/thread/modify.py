"""Change a thread's state by a function, and retry if another save came first.

Laws:
- The function gets the newest state, and what it makes of it is saved on just that: no
  save of anyone else is lost between.
- A function that raises changes nothing, and the handle stays where it was.
- A key makes a repetition return the first one's checkpoint: it is kept in that one's
  metadata, and looked for among the last hundred or so.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.retrying import contended
from shoal.client.thread.bases import Positions
from shoal.client.thread.inbox import Message
from shoal.client.thread.mutations import KEY, MutationLog
from shoal.client.thread.schema import Declared
from shoal.errors import HeadMoved, InvalidInput, KeyReused, NotFound
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Durability
from shoal.workflows.checkpoint import Checkpoint, shown_checkpoint

Outcome = Mapping[str, Any] | None
Modify = Callable[[dict[str, Any]], Outcome | Awaitable[Outcome]]
"""(state) → the new state; or None, where it changed the one that it got. It may be asynchronous."""


@named
class ThreadModify:
    """What a `Thread` offers to change its state by a function."""

    space: str
    name: str
    _connection: Connection
    _declared: Declared | None
    _positions: Positions

    if TYPE_CHECKING:

        async def load(self, checkpoint: str | None = None, *, branch: str | None = None) -> Checkpoint: ...
        async def save(
            self,
            state: Mapping[str, Any],
            *,
            metadata: Mapping[str, Any] | None = None,
            branch: str = "main",
            parent: str | None = None,
            label: str = "",
            take: Sequence[Message] = (),
            key: str | None = None,
            durability: Durability | None = None,
        ) -> Checkpoint: ...
        async def _save(
            self, request: requests.Save, key: str | None, durability: Durability | None, take: Sequence[Message] = ()
        ) -> Checkpoint: ...

    async def modify(
        self,
        fn: Modify,
        *,
        metadata: Mapping[str, Any] | None = None,
        branch: str = "main",
        label: str = "",
        take: Sequence[Message] = (),
        key: str | None = None,
        durability: Durability | None = None,
    ) -> Checkpoint:
        """Load the newest state of `branch`, let `fn` change it, and save it; retry if another save came first.

        `fn(state)` returns the new state, or changes the given one and returns None. It may be
        asynchronous; a synchronous function runs on the event loop. A branch that does not exist
        yet has the state `{}`. `fn` is called again for each attempt, up to `save_attempts_max`
        times, so it must have no other effect.

        On a forked branch it changes the winner; the other heads stay, and the checkpoint has
        `forked` set. The rest is as in `save`. With a `key`, repeating the call, even in another
        process, returns the checkpoint of the first call.

        Raises:
            HeadMoved: another save came first at every attempt. Nothing was written.
            InvalidInput: `fn` is not a function of one argument.
            InvalidValue, SchemaViolation, Taken, KeyReused, OutcomeUnknown: as `save`.
            Exception: whatever `fn` raises. Nothing was written.
        """
        if not _takes_a_state(fn):
            raise InvalidInput(f"fn must be a function of the state, not {fn!r:.100}. Nothing was written.", field="fn")
        if key is not None and (sent := self._positions.unsettled(branch, key)) is not None:
            return await self._save(sent, key, durability, take)
        told = metadata if key is None else {**(metadata or {}), KEY: key}
        pauses = contended(self._connection)
        reused: KeyReused | None = None
        while True:
            parent, state = await self._newest(branch)
            if key is not None and parent and (done := await self._log.keyed(parent, key)) is not None:
                return await self.load(done.id, branch=branch)
            if reused is not None:
                raise reused
            made = fn(state)
            made = await made if inspect.isawaitable(made) else made
            try:
                return await self.save(
                    state if made is None else made,
                    metadata=told,
                    branch=branch,
                    parent=parent,
                    label=label,
                    take=take,
                    key=key,
                    durability=durability,
                )
            except HeadMoved as moved:
                if (pause := next(pauses, None)) is None:
                    raise crowded(moved, self._connection) from None
                await asyncio.sleep(pause)
            except KeyReused as refused:
                reused = refused  # Either this very change was already saved elsewhere, or the key belongs to another one.

    @property
    def _log(self) -> MutationLog:
        return MutationLog(self._connection, self.space, self.name)

    async def _newest(self, branch: str) -> tuple[str, dict[str, Any]]:
        """The branch's winner and its state. The handle stays where it is."""
        try:
            found = await self._connection.read(requests.Load(self.space, self.name, None, branch))
        except NotFound:
            return NO_HEAD, {}
        assert isinstance(found, requests.Checkpoint)
        shown = found if self._declared is None else self._declared.loaded(found)
        return found.id, shown_checkpoint(shown, channels=True).state


def _takes_a_state(fn: object) -> bool:
    if not callable(fn):
        return False
    try:
        inspect.signature(fn).bind({})
    except ValueError:  # Some built-in functions have no signature.
        return True
    except TypeError:
        return False
    return True


def crowded(moved: HeadMoved, connection: Connection) -> HeadMoved:
    attempts = connection.config.save_attempts_max
    return HeadMoved(f"another save came first at each of {attempts} attempts: {moved.message}", **moved.detail)
