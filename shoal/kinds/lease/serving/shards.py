"""One shard of the leases: a key of the quorum register, which this node reads and changes for all its clients at once.

Laws:
- Decisions that wait are made together, on one content, and stored by one compare-and-set. If another node was
  faster, all are made again on what it stored.
- A decision that changes nothing was made on a content that the register held after the decision was asked for.
- The answer to a decision names a time before the content was sent: a lease counts from there.

Terms of leases and claims: their names, tokens and holders, and the error once one has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Generic, TypeVar

from shoal.cluster.consensus.ballots import ID_BYTES
from shoal.errors import InvalidInput, InvalidValue, LeaseLost, NotFound, OutcomeUnknown, Overloaded, ShoalError
from shoal.kinds.lease.state import table
from shoal.kinds.lease.state.table import Decider, Grant, LeaseName, Sightings, Table
from shoal.names import NAME_BYTES_MAX, check_name
from shoal.node.consensus.quorum_register import QuorumRegister, Versioned
from shoal.node.context import NodeContext
from shoal.node.naming import of_hex
from shoal.protocol.requests import BeginAttempt, CompleteItem, ExtendClaim, FailItem, ObjectWrite, Swap, Term
from shoal.raising import why
from shoal.records import NamedTuple

LEASE_WAITERS_MAX = 32  # Claims that wait for one lease; beyond this: Overloaded.
LEASE_OFFER_S = 5.0  # A lease that is granted to one that waits, and is not taken for this long, goes to the next.

T = TypeVar("T")

_BEAT_BYTES = 8
_ATTEMPTS_MAX = 30  # Of one set of decisions, each after another node was faster.
_DECISIONS_MAX = 1024  # In one change.
_PAUSE_S = 0.01  # After the first attempt; random, and longer after each.


class Decided(NamedTuple, Generic[T]):
    """The outcome of a decision."""

    outcome: T
    sent_s: float  # Before the content was sent.


class _Waiting(NamedTuple):
    decide: Callable[[Table, Decider], Any]
    told: asyncio.Future[Decided[Any]]
    nth: int  # Of all that were asked for.


class Shard:
    """The leases under one key."""

    def __init__(self, context: NodeContext, register: QuorumRegister, key: str, *, is_fresh: bool) -> None:
        """`is_fresh`: nobody can still hold what was granted before this process started."""
        self._register = register
        self.key = key
        self._node = context.incarnation.node
        self._environment = context.environment
        self._config = context.config
        self._sightings = Sightings(drift=context.config.lease_drift_max, offer_ms=int(LEASE_OFFER_S * 1000))
        self._is_fresh = is_fresh
        self._known: Versioned | None = None
        self._asked = 0  # Decisions so far.
        self._known_since = -1  # The register held it when so many had been asked for, or later.
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None
        self._gathering: asyncio.Event | None = None
        self._passed: bytes | None = None  # The last content that was proposed, if nobody looked at it yet.
        self._hint: Table | None = None
        self._watchers: dict[asyncio.Event, None] = {}  # In the order in which they came, so that a run can be repeated.

    async def decide(self, decide: Callable[[Table, Decider], T], *, gather_s: float = 0.0) -> Decided[T]:
        """Make a decision on the newest content. It may wait `gather_s` for others.

        Raises:
            NoQuorum, Overloaded, ShuttingDown: nothing was written.
            OutcomeUnknown: it may be stored.
            Exception: whatever `decide` raised. Nothing was written for it.
        """
        told: asyncio.Future[Decided[T]] = asyncio.get_running_loop().create_future()
        self._asked += 1
        self._waiting.append(_Waiting(decide, told, self._asked))
        if self._task is None:
            self._gathering = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._work(gather_s))
        elif not gather_s and self._gathering is not None:
            self._gathering.set()
        return await told

    async def read(self) -> Table:
        """The newest content."""
        return await self._read()

    def glimpse(self) -> Table | None:
        """The last content that was proposed or stored, as far as this node was told: a hint for those that wait."""
        if self._passed is not None:
            self._hint = Table.unpack(self._passed)
            self._sightings.glimpse(self._hint, self._environment.uptime())
            self._passed = None
        return self._hint

    def remaining_s(self, name: LeaseName, grant: Grant) -> float:
        """How long this grant must stay unrenewed until others may take it."""
        return self._sightings.remaining_s(name, grant, self._environment.uptime())

    def proposed(self, content: bytes) -> None:
        """Somebody proposed a content: those who watch look at it."""
        self._passed = content
        self.stir()

    def forget(self) -> None:
        """The register was founded anew: read it before the next decision."""
        self._known = self._passed = self._hint = None
        self.stir()

    def stir(self) -> None:
        """Have those who watch look again."""
        for stirred in self._watchers:
            stirred.set()

    async def stirred(self, timeout_s: float) -> None:
        """Return when somebody proposes a content, or after this time."""
        event = asyncio.Event()
        self._watchers[event] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await event.wait()
        finally:
            del self._watchers[event]

    async def close(self) -> None:
        """End the work that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._waiting:
            waiting.told.cancel()

    async def _work(self, gather_s: float) -> None:
        try:
            if gather_s and self._gathering is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(gather_s):
                        await self._gathering.wait()
            self._gathering = None
            while self._waiting:
                batch, self._waiting = self._waiting[:_DECISIONS_MAX], self._waiting[_DECISIONS_MAX:]
                try:
                    await self._carry_out(batch)
                except ShoalError as error:
                    for each in batch:
                        if not each.told.done():
                            each.told.set_exception(error)
                except BaseException:
                    for each in batch:
                        each.told.cancel()
                    raise
        finally:
            self._task = None

    async def _carry_out(self, batch: list[_Waiting]) -> None:
        last = max(each.nth for each in batch)
        for nth in range(_ATTEMPTS_MAX):
            if self._known is None:
                await self._read()
            assert self._known is not None
            known, sent_s, asked = self._known, self._environment.uptime(), self._asked
            outcomes, content = self._decided(batch, known)
            if content == known.content:
                if self._known_since < last:
                    await self._read()
                if self._known == known:
                    return self._tell(batch, outcomes, sent_s)
                continue
            exchanged = await self._exchange(known, content)
            if exchanged is not None:
                made, found = exchanged
                self._seen(found, since=asked)
                if made:
                    return self._tell(batch, outcomes, sent_s)
            await asyncio.sleep(_PAUSE_S * (nth + 1) * self._environment.entropy(1)[0] / 255)
        raise Overloaded(
            f"other nodes changed {self.key} {_ATTEMPTS_MAX} times meanwhile. Nothing was written. Try again later.",
            retry_after_s=self._config.quorum_register_retry_s,
        )

    async def _read(self) -> Table:
        asked = self._asked
        return self._seen(await self._register.read(self.key), since=asked)

    async def _exchange(self, known: Versioned, content: bytes) -> tuple[bool, Versioned] | None:
        """Whether the content was stored, and what the register holds; None if that is not known any more.

        Then the decisions are made again: a claim, a renewal and a release find by their tokens what they did before.
        """
        id = self._environment.entropy(ID_BYTES)
        try:
            return await self._register.exchange(self.key, known.version, content, id=id)
        except OutcomeUnknown as error:
            self._known = None
            if "version" in error.detail:
                return None
            raise OutcomeUnknown(
                f"it is not known whether this change of a lease or a claim was stored: {why(error)}. It may still be. Ask "
                "again: what this caller was granted is found then; nobody else is hurt, as what is not renewed ends with its "
                "ttl.",
                **error.detail,
            ) from None
        except ShoalError:
            self._known = None
            raise

    def _decided(self, batch: list[_Waiting], known: Versioned) -> tuple[list[Any], bytes]:
        """The outcome of each decision, or the error that it raised, and the content after them."""
        now = self._environment.uptime()
        sightings = self._sightings
        turn = Decider(
            self._node,
            self._environment.entropy(_BEAT_BYTES),
            lambda name, grant: sightings.is_dead(name, grant, now),
            lambda name, grant: sightings.is_alone(name, grant, now),
            LEASE_WAITERS_MAX,
            self._config.quorum_register_value_bytes_max,
        )
        table = Table.unpack(known.content)
        table.tidy(turn)
        outcomes: list[Any] = []
        for each in batch:
            before, last = dict(table.grants), table.last
            try:
                outcome = each.decide(table, turn)
            except Exception as error:
                outcome = error
            bytes_max = self._config.quorum_register_value_bytes_max
            if any(table.left_bytes(space, bytes_max) < 0 for space in _grown(before, table.grants)):
                table.last, table.grants = last, before
                outcome = Overloaded(
                    f"there is no room for another lease of this space in {self.key} (quorum_register_value_bytes_max). "
                    "Nothing was written. Try again when other leases have ended.",
                    retry_after_s=self._config.lease_poll_s,
                )
            outcomes.append(outcome)
        return outcomes, table.pack()

    def _seen(self, found: Versioned, *, since: int) -> Table:
        table = Table.unpack(found.content)
        if self._known is not None and found.version < self._known.version:
            return table  # It was read before a change that is known by now.
        now = self._environment.uptime()
        if self._is_fresh:
            now, self._is_fresh = float("-inf"), False
        self._sightings.see(table, now)
        self._known, self._hint, self._passed, self._known_since = found, table, None, since
        return table

    def _tell(self, batch: list[_Waiting], outcomes: list[Any], sent_s: float) -> None:
        for each, outcome in zip(batch, outcomes, strict=True):
            if each.told.done():
                continue  # The caller gave up.
            if isinstance(outcome, Exception):
                each.told.set_exception(outcome)
            else:
                each.told.set_result(Decided(outcome, sent_s))


def _grown(before: dict[LeaseName, Grant], after: dict[LeaseName, Grant]) -> set[str]:
    """The spaces that have more leases, or more that wait, than before."""
    return {
        name.space
        for name, grant in after.items()
        if (known := before.get(name)) is not grant and (known is None or len(grant.waiting) > len(known.waiting))
    }


TOKEN_BYTES = 16


UNDER_CLAIM = frozenset[type]((BeginAttempt, CompleteItem, FailItem, Swap))
"""The requests that a node accepts only under a claim: of an item, or of a register for one `compare_and_set`."""

_REGISTERS, _TIES = "\0register", "\0tie"  # No worklist has such a name.
_THE_REGISTER = "00"


def register_term(space: str, register: str, fence: int = 0, token: str = "") -> Term:
    """A claim of a register."""
    return Term(space, register, False, fence, token, _REGISTERS, _THE_REGISTER)


def tied_term(space: str, name: str, about: str) -> Term:
    """A claim of a part of an object, for writes that are tied."""
    return Term(space, name, False, 0, "", _TIES, sha256(about.encode()).hexdigest()[:24])


def term_of(write: ObjectWrite[Any] | ExtendClaim) -> Term:
    """The claim that a request in `UNDER_CLAIM`, or the renewal of one, is about."""
    if isinstance(write, Swap):
        return register_term(write.space, write.register, write.fence, write.token)
    assert isinstance(write, BeginAttempt | CompleteItem | FailItem | ExtendClaim)
    return Term(write.space, write.thread, False, write.fence, write.token, write.worklist, write.id)


def lost(name: LeaseName, fence: int, grant: Grant | None) -> LeaseLost:
    """The error for a term that has ended."""
    if grant is None or grant.fence == fence:
        why, holder = "has ended", ""
    else:
        holder = grant.claim.holder
        why = f"has ended: {repr(holder) if holder else 'another client'} holds it now (fencing number {grant.fence})"
    what = "claim of an item" if table.is_item(name) else f"lease of {described(name)}" if name.is_thread else described(name)
    return LeaseLost(
        f"your {what} (fencing number {fence}) {why}. "
        "Nothing was written. Stop, or acquire it again and load the current state.",
        fence=fence,
        holder=holder,
    )


def described(name: LeaseName) -> str:
    """A lease, for people."""
    if table.is_item(name):
        return "an item"
    return f"thread {name.name!r}" if name.is_thread else f"lease {name.name!r}"


def item_of(term: Term) -> LeaseName:
    """The lease that is this claim."""
    try:
        item = bytes.fromhex(term.item)
    except ValueError:
        raise InvalidValue(f"an item's id is hex digits; got {term.item[:80]!r}. Nothing was written.") from None
    return table.item_name(term.space, table.worklist_mark(term.lease, term.worklist), item)


def check_holder(holder: str) -> None:
    """Check the name of a holder, which may be empty."""
    if holder:
        check_name("holder", holder)
        if len(holder.encode()) > NAME_BYTES_MAX // 4:
            raise InvalidInput(f"a holder's name has at most {NAME_BYTES_MAX // 4} bytes. Nothing was written.", field="holder")


def check_token(text: str) -> bytes:
    """A token in bytes."""
    return of_hex(text, TOKEN_BYTES, "a token has")


def nobody_waits(to: str, name: LeaseName) -> NotFound:
    """The error for a lease that cannot be handed to a holder, because that does not wait for it."""
    return NotFound(f"no holder {to!r} waits for {described(name)}. Nothing was written, and its holder keeps it.")
