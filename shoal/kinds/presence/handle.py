"""Presence: agents and editors that share a space or a document find each other.

    await doc.presence.set({"name": "critic", "doing": "reading"})
    for member in await doc.presence.members(): ...
    async for change in doc.presence.changes(): ...

Laws:
- The state that is set is renewed until it is cleared or the store is closed, also on
  another node after a fail-over. A member that stops renewing disappears for all after
  `presence_timeout_s`, and at once if its connection ends.
- Presence is not durable, and a short network failure may hide members for a while. It
  grants no rights.
- A document's presence is the awareness of its Yjs clients: editors are members
  too, and see what agents set.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from shoal.client.arguments import named
from shoal.client.connection import StreamTimer, resumed
from shoal.config import Config
from shoal.errors import Disconnected, InvalidInput, InvalidValue, ShoalError
from shoal.kinds.presence.state import GONE
from shoal.protocol.requests import Announce, Announced, FollowPresence, Present, ReadPresence
from shoal.protocol.requests import Presence as PresenceReply
from shoal.protocol.session import Session

RENEWALS = 2  # Renewals per `presence_timeout_s`; Yjs clients do the same.


@dataclass(frozen=True, slots=True)
class PresentMember:
    """A member that is present. In a document `id` is the Yjs client id that its edits have."""

    id: int
    state: Any
    mine: bool


@dataclass(frozen=True, slots=True)
class PresenceChange:
    """A change of presence. For a member that left, `state` is the last one announced."""

    kind: Literal["joined", "changed", "left"]
    member: PresentMember


@named
class Presence:
    """Presence in a space or in a document."""

    def __init__(
        self,
        session: Session,
        space: str,
        document: str,
        *,
        client_id: int,
        config: Config,
        on_set: Callable[[Presence], None] = lambda _: None,
    ) -> None:
        self._session, self._config = session, config
        self._space, self._document = space, document
        self._id = client_id
        self._clock = 0
        self._state: bytes | None = None
        self._on_set = on_set
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def id(self) -> int:
        """The id under which others see this handle."""
        return self._id

    async def set(self, state: Mapping[str, Any]) -> None:
        """Announce yourself with this state of JSON values. It replaces the state that was set before.

        Raises:
            InvalidValue: it is not JSON.
            TooLarge: it is larger than `PRESENCE_STATE_BYTES_MAX`.
            Overloaded: too many members are present.
            Disconnected: no node could be reached; others see the state once one is reached.
        """
        if self._closed:
            raise InvalidInput("this presence is closed. Nothing was announced. Open its store or document again.")
        try:
            self._state = msgspec.json.encode(dict(state))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValue(f"a presence state must be JSON: {error}. Nothing was announced.") from None
        await self._announce()
        if not self._tasks:
            self._tasks = [asyncio.create_task(work) for work in (self._renew(), self._watch())]
            self._on_set(self)

    async def clear(self) -> None:
        """Withdraw the announced state. Other clients learn of it at once if a node is reachable."""
        await self._stop()
        if self._state is not None:
            self._state = None
            with suppress(ShoalError):  # If it fails, the entry expires.
                await self._announce()

    async def members(self) -> list[PresentMember]:
        """The members present, as far as the node knows, including this one."""
        reply = await self._session.call(ReadPresence(self._space, self._document))
        return [self._member(present) for present in reply.entries]

    async def changes(self, *, timeout: float | None = None) -> AsyncGenerator[PresenceChange, None]:  # noqa: ASYNC109
        """Yield the members present now, each as joined, and then every change.

        After a disconnect it continues by itself, with another node if there is one. With a `timeout` it ends
        when nothing has changed for so many seconds. To stop early, close it (`contextlib.aclosing`), which ends its
        subscription at once.

        Raises:
            Disconnected: no node could be reached for `request_timeout_s`.
        """
        known: dict[int, PresentMember] = {}

        async def attempt(timer: StreamTimer) -> AsyncGenerator[PresenceChange, None]:
            async with aclosing(self._heard()) as heard:
                async for entries, whole in heard:
                    for change in self._changed(known, entries, whole=whole):
                        yield change
                    timer.served()

        stream = resumed(self._config, attempt, timeout=timeout, closed=lambda: self._closed)
        async with aclosing(stream) as changes:
            async for change in changes:
                yield change

    async def close(self) -> None:
        """Withdraw the announced state, and stop. Closing twice is allowed."""
        self._closed = True
        await self.clear()

    # ── announcing ────────────────────────────────────────────────────────────

    async def _announce(self) -> None:
        self._clock += 1
        reply = await self._call(self._clock)
        if reply.gone:  # The node counts us as gone, with a newer clock than ours.
            self._clock = max(present.clock for present in reply.gone) + 1
            await self._call(self._clock)

    async def _call(self, clock: int) -> Announced:
        present = Present(self._id, clock, GONE if self._state is None else self._state)
        return await self._session.call(Announce(self._space, self._document, [present]))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._config.presence_timeout_s / RENEWALS)
            with suppress(ShoalError):  # The next renewal, or the next connection, announces it again.
                await self._announce()

    async def _watch(self) -> None:
        """Announce again after a fail-over, or if another client reported us as gone."""

        async def attempt(_: StreamTimer) -> AsyncGenerator[None, None]:
            async with aclosing(self._heard()) as heard:
                async for entries, whole in heard:
                    mine = [present.state for present in entries if present.client == self._id]
                    if (mine and mine[-1] == GONE) or (whole and not mine):
                        await self._announce()
                    yield

        while True:
            try:
                async with aclosing(resumed(self._config, attempt)) as rounds:
                    async for _ in rounds:
                        pass
            except ShoalError as error:
                if not error.retryable:  # Otherwise a node may come back at any time.
                    return

    async def _heard(self) -> AsyncGenerator[tuple[list[Present], bool], None]:
        """Yield entries that a node reports, and whether they are all entries."""
        whole = True
        async with self._session.subscribe(FollowPresence(self._space, self._document)) as pushes:
            async for push in pushes:
                assert isinstance(push, PresenceReply)
                yield push.entries, whole
                whole = False
        raise Disconnected("the node ended the subscription. Nothing was announced. Try again.")

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── following ─────────────────────────────────────────────────────────────

    def _changed(self, known: dict[int, PresentMember], entries: list[Present], *, whole: bool) -> list[PresenceChange]:
        changes: list[PresenceChange] = []
        if whole:
            here = {present.client for present in entries}
            changes += [PresenceChange("left", known.pop(id)) for id in list(known) if id not in here]
        for present in entries:
            before = known.pop(present.client, None)
            if present.state == GONE:
                changes += [PresenceChange("left", before)] if before is not None else []
                continue
            member = known[present.client] = self._member(present)
            if before is None:
                changes.append(PresenceChange("joined", member))
            elif before.state != member.state:
                changes.append(PresenceChange("changed", member))
        return changes

    def _member(self, present: Present) -> PresentMember:
        return PresentMember(present.client, msgspec.json.decode(present.state), present.client == self._id)
