"""Requests that are carried out one at a time, on all nodes: `compare_and_set` of a register, and writes that are tied.

Laws:
- Each is carried out under a lease of the register. The node catches up with a quorum after the grant, and answers only if
  the lease has not ended by then. So it decides on every write that an earlier one was acknowledged.
- Its write has the lease's fencing number, and replicas ignore one with a smaller number (`shoal.kinds.register.state`).
  So if a write was not acknowledged in its term, and a later one was made without it, it never counts.
- Before answering, the value is written again under the current fencing number: otherwise a write of a number between,
  which nobody has seen yet, could still replace it, as if the register had never had the value that was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from shoal import values
from shoal.errors import LeaseLost, NoQuorum, OutcomeUnknown, Overloaded, RegisterChanged, Unavailable
from shoal.kinds.lease.serving.leases import Leases
from shoal.kinds.lease.serving.shards import TOKEN_BYTES, item_of, register_term, tied_term
from shoal.kinds.lease.state.table import Claim, Group, LeaseName, worklist_mark
from shoal.kinds.worklist.serving.handouts import Handouts, Worklist
from shoal.node.context import NodeContext
from shoal.node.handler import Contest
from shoal.node.replicas import Replicas
from shoal.node.turns import Background
from shoal.node.writes.issuing import Located
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, CompareAndSet, Durability, Swap, Swapped, Term, WasSet
from shoal.raising import why

COMPARE_TTL_S = 2.0  # The lease of one compare_and_set, or of a tie of steps: if its node dies, others wait so long.

_GATHER_S = 0.005  # A lease's end waits so long for the next claim at this node, to be stored with it.
_LOOK_S = 0.25  # Until a claim that waits is tried again, although nobody told this node of a change.
_ATTEMPTS_MAX = 8  # To decide and write again, each after an old write has arrived meanwhile.
_SHOWN_MAX = 100
_SHOWN_BYTES_MAX = 16 * 1024  # Of a value that is decoded to be shown.
_RENEWALS = 3  # In each ttl.


class Write(Protocol):
    """Makes a write with the node's service."""

    def __call__(
        self, request: Swap, bookmark: Bookmark, key: str | None, durability: Durability, /, *, stale: bool
    ) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class Single(Protocol):
    """Answers a request, which may have an idempotency key."""

    def __call__(
        self, request: Any, bookmark: Bookmark, key: str | None, durability: Durability, /, *, stale: bool
    ) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class Alone:
    """`answers` serves the requests."""

    def __init__(self, context: NodeContext, handouts: Handouts, *, replicas: Replicas, write: Write) -> None:
        self._leases = handouts.leases
        self._handouts = handouts
        self._replicas = replicas
        self._write = write
        self._environment = context.environment
        self._config = context.config
        self._locks: WeakValueDictionary[LeaseName, asyncio.Lock] = WeakValueDictionary()
        self._ending = Background()  # If the end of a lease fails, it ends by itself.
        self.answers: Mapping[type, Single] = {CompareAndSet: self._compare_and_set}

    async def _compare_and_set(
        self, request: CompareAndSet, bookmark: Bookmark, key: str | None, durability: Durability, /, *, stale: bool
    ) -> WasSet:
        """Set a register if it has the expected value.

        Raises:
            RegisterChanged: it has another one.
            OutcomeUnknown: the write is recorded, but it is not known whether it counts.
            NoQuorum, Unavailable: nothing was written.
        """
        wanted, what = register_term(request.space, request.register), f"register {request.register!r}"
        copies: Durability = "all" if durability == "all" else "quorum"
        async with self._term(wanted, what) as term:
            reply = await self._compared(request, term, bookmark, key, copies, stale=stale)
        if reply is None:
            async with self._term(wanted, what) as term:
                reply = await self._compared(request, term, bookmark, key, copies, stale=stale)
        if reply is None:
            raise _too_slow(request.register)
        if not reply.swapped:
            raise RegisterChanged(
                f"register {request.register!r} is {_shown(reply.value)}, not {_shown(request.expected)}. It was not changed. "
                "Decide again on its present value.",
                version=reply.version,
                value=_shown(reply.value),
            )
        return WasSet(reply.context, reply.version)

    async def _compared(
        self, request: CompareAndSet, term: Term, bookmark: Bookmark, key: str | None, durability: Durability, *, stale: bool
    ) -> Swapped | None:
        """The outcome of a swap under a term; None if the register has one of a greater number: a term of now is later."""
        swap = Swap(request.space, request.register, request.expected, request.value, term.fence, term.token, by=request.by)
        opening = msgspec.structs.replace(swap, opens=True)
        try:
            for _ in range(_ATTEMPTS_MAX):
                reply = await self._swapped(opening, bookmark, key, durability, stale=stale)
                opening = swap
                if self._replicas.size == 1:
                    return reply  # No write can be on another disk only.
                if reply.fence != term.fence:
                    return await self._repeated(swap, reply.fence, bookmark, durability, stale=stale)
                if reply.swapped:
                    return reply
                settle = msgspec.structs.replace(swap, settles=True)
                reply = await self._swapped(settle, bookmark, None, durability, stale=stale)
                if not reply.swapped:
                    return reply
        except LeaseLost as error:
            if error.written == "no" and isinstance(known := error.detail.get("known"), int):
                await self._leases.count_past(item_of(term), known)
                return None
            if error.written == "no":
                raise _too_slow(request.register) from None
            raise OutcomeUnknown(
                f"the write is recorded, but its lease of register {request.register!r} ended before it could be acknowledged, "
                "so a later compare_and_set may have been made without it. Send it again with the same idempotency key, or "
                "read the register."
            ) from None
        raise Overloaded(
            f"the value of register {request.register!r} changed {_ATTEMPTS_MAX} times meanwhile. It was not changed by this "
            "request. Try again.",
            retry_after_s=self._config.quorum_register_retry_s,
        )

    async def _repeated(self, swap: Swap, made: int, bookmark: Bookmark, durability: Durability, *, stale: bool) -> Swapped:
        """The reply to a request whose key was used before: it counts if the register still has its value."""
        settle = msgspec.structs.replace(swap, settles=True, made=made)
        reply = await self._swapped(settle, bookmark, None, durability, stale=stale)
        if not reply.swapped:
            raise OutcomeUnknown(
                f"register {swap.register!r} is {_shown(reply.value)}. This request was recorded before, and whether it set "
                "the register for a while is not known any more. Decide again on the present value, with a new idempotency key."
            )
        return reply

    async def _swapped(
        self, swap: Swap, bookmark: Bookmark, key: str | None, durability: Durability, *, stale: bool
    ) -> Swapped:
        reply = await self._write(swap, bookmark, key, durability, stale=stale)
        assert isinstance(reply, Swapped)
        return reply

    async def untied(
        self,
        contest: Contest,
        located: Located,
        *,
        look: Callable[[], Awaitable[AnyReply]],
        give_way: Callable[[], Awaitable[AnyReply]],
    ) -> AnyReply:
        """The reply to one of several writes that saw each other: all but the last that comes here give way.

        That at most one is made rests on what they see of each other, and not on the lease.
        """
        [request], [target] = located.writes, located.targets
        about = contest.about(request)
        wanted = tied_term(target.space, target.name, about)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._term(wanted, f"{about!r} of {target.kind.label} {target.name!r}"))
            except (NoQuorum, Unavailable):
                return await give_way()
            reply = await look()
            return await give_way() if contest.tied(request, reply) else reply

    # ── leases ────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _term(self, wanted: Term, what: str) -> AsyncIterator[Term]:
        """Hold a lease for one request. Requests at this node take turns.

        Raises:
            NoQuorum, Overloaded, Unavailable: nothing was written.
        """
        lock = self._locks.setdefault(item_of(wanted), asyncio.Lock())
        try:
            async with asyncio.timeout(self._config.quorum_timeout_s):
                await lock.acquire()
        except TimeoutError:
            raise self._busy(what) from None
        try:
            term = await self._granted(wanted, what)
            renewals = _Renewals(self._leases, term, COMPARE_TTL_S / _RENEWALS)
            try:
                yield term
            finally:
                renewals.end()
                self._handouts.end(term, gather_s=_GATHER_S)
        finally:
            lock.release()

    async def _granted(self, wanted: Term, what: str) -> Term:
        mark, item = worklist_mark(wanted.lease, wanted.worklist), bytes.fromhex(wanted.item)
        worklist = Worklist(wanted.space, mark, lambda: (item,), lambda item: Group())
        token = self._environment.entropy(TOKEN_BYTES)
        claim = Claim(token, "", int(1000 * COMPARE_TTL_S))
        ends_at = self._environment.uptime() + self._config.quorum_timeout_s
        try:
            while True:
                left_s = ends_at - self._environment.uptime()
                try:
                    found = await self._handouts.hand_out(worklist, claim)
                except OutcomeUnknown as error:
                    if left_s <= _LOOK_S:
                        raise NoQuorum(
                            f"the lease of {what} could not be taken: {why(error)}. Nothing was written. "
                            "Try again when a quorum can be reached."
                        ) from None
                    continue  # If it was granted, the claim finds that.
                if found is not None:
                    return msgspec.structs.replace(wanted, fence=found.grant.fence, token=token.hex())
                if left_s <= 0:
                    raise self._busy(what)
                free_s = self._handouts.waits_s(worklist)
                if free_s:
                    await self._handouts.stirred(worklist, min(left_s, free_s, _LOOK_S))
        except BaseException:
            self._ending.attempt(partial(self._leases.withdraw, wanted.space, mark, token))
            raise

    def _busy(self, what: str) -> Unavailable:
        return Unavailable(
            f"others changed {what} for {self._config.quorum_timeout_s:g} s (quorum_timeout_s), so this request did not get "
            "its turn. Nothing was written. Try again."
        )

    async def close(self) -> None:
        """End the work that is under way."""
        await self._ending.close()


class _Renewals:
    """Renews a lease while its request takes long."""

    def __init__(self, leases: Leases, term: Term, every_s: float) -> None:
        self._leases = leases
        self._term = term
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(every_s, self._begin)

    def end(self) -> None:
        """Renew it no more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        with suppress(LeaseLost):
            while True:
                with suppress(NoQuorum, OutcomeUnknown, Unavailable):
                    await self._leases.renewed(self._term)
                await asyncio.sleep(self._every_s)


def _shown(packed: bytes) -> str:
    """A value for people, shortened. A large one is not decoded for that."""
    if len(packed) > _SHOWN_BYTES_MAX:
        return f"a value of {len(packed)} bytes"
    try:
        text = repr(values.decode(packed))
    except Exception:  # Of a class that is not registered here, for one.
        return f"a value of {len(packed)} bytes"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _too_slow(register: str) -> Unavailable:
    return Unavailable(
        f"this compare_and_set of register {register!r} took longer than its lease of {COMPARE_TTL_S:g} s. "
        "Nothing was written. Try again."
    )
