"""Leases of this node's clients: acquired, renewed, released and read on the quorum register.

Laws:
- A write under a lease is accepted while this node knows, by its own clock, that the term has not ended: less than
  `ttl × (1 − drift)` has passed since it sent a renewal that was stored. If it does not know, it renews the lease
  itself. So at any time at most one term's writes are accepted, on all nodes.
- A node forgets a term before it stores its release.
- A claim that waits costs nothing while the holder renews: this node looks only at contents that pass by.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence

import msgspec

from shoal.errors import InvalidInput, LeaseHeld, NotFound, Overloaded, ShoalError, Unavailable
from shoal.kinds.lease.serving.shards import (
    LEASE_WAITERS_MAX,
    TOKEN_BYTES,
    Decided,
    Shard,
    check_holder,
    check_token,
    described,
    item_of,
    lost,
    nobody_waits,
)
from shoal.kinds.lease.state import table
from shoal.kinds.lease.state.table import Claim, Grant, LeaseName, holds_s
from shoal.names import check_name
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.protocol.requests import (
    AcquireLease,
    EndLease,
    LeaseGranted,
    LeasesRenewed,
    LeaseState,
    ReadLease,
    ReleaseLease,
    Term,
)
from shoal.records import NamedTuple

LEASE_GATHER_S = 0.5  # Renewals wait for others to be stored with them, at most a tenth of their ttl.

_ENDING_MAX = 1024  # More than are released while one renewal is on its way.


class _Known(NamedTuple):
    """A term whose writes this node accepts."""

    fence: int
    token: bytes
    until_s: float


class Leases:
    """The leases as one node serves them."""

    def __init__(self, context: NodeContext, register: QuorumRegister, *, is_fresh: bool) -> None:
        """`is_fresh`: nobody can still hold what was granted before this process started."""
        self._environment = context.environment
        self._config = context.config
        self._shards = [
            Shard(context, register, f"{table.KEY}{nth}", is_fresh=is_fresh) for nth in range(context.config.lease_shards)
        ]
        self._by_key = {f"{table.KEY}{nth}": shard for nth, shard in enumerate(self._shards)}
        self._known: dict[LeaseName, _Known] = {}  # Those that have ended leave it when it doubles.
        self._known_max = 64
        self._ending: dict[LeaseName, int] = {}  # The last fencing numbers that were released here.
        self._waits_ended = False
        register.tell(self)

    # ── requests ──────────────────────────────────────────────────────────────

    async def acquire(self, request: AcquireLease) -> LeaseGranted:
        """Acquire a lease, or wait for it for a while.

        Raises:
            LeaseHeld: somebody else holds it.
            Overloaded: too many wait, or there is no room for another lease.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        name = self._named(request.space, request.lease, is_thread=request.thread)
        self.check_ttl(request.ttl)
        check_holder(request.holder)
        token = check_token(request.token) if request.token else self._environment.entropy(TOKEN_BYTES)
        claim = Claim(token, request.holder, request.ttl)
        shard = self.shard_of(name)
        ends_at = self.ends_at(request.wait)
        while True:
            decided = await self._claimed(shard, name, claim, waits=request.wait > 0)
            if decided.outcome is not None:
                self.know(name, decided.outcome, decided.sent_s)
                return LeaseGranted(granted=True, fence=decided.outcome.fence, token=token.hex(), holder=request.holder)
            grant = await self._waited(shard, name, claim, ends_at)
            if grant is not None:
                return LeaseGranted(granted=False, fence=grant.fence, token=token.hex(), holder=grant.claim.holder)

    async def count_past(self, name: LeaseName, fence: int) -> None:
        """Grant greater fencing numbers than this one from now on (`Table.count_past`)."""
        await self.shard_of(name).decide(lambda leases, _: leases.count_past(fence))

    async def counted(self, term: Term, past: int) -> Term:
        """This term with a fencing number above `past`, which the rows of its thread name.

        Raises:
            LeaseLost: it has ended.
            Unavailable: there is no such number.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        name, token = self._of(term), check_token(term.token)
        decided = await self.shard_of(name).decide(lambda leases, turn: leases.counted(name, token, past, turn))
        if decided.outcome is None:
            raise lost(name, term.fence, None)
        if decided.outcome.fence <= past:
            raise Unavailable(
                f"the rows of {described(name)} name the fencing number {past}, beyond which none is granted. The lease was "
                "not acquired. `shoal verify` finds rows that no operation made."
            )
        self.know(name, decided.outcome, decided.sent_s)
        return msgspec.structs.replace(term, fence=decided.outcome.fence)

    async def renew(self, terms: Sequence[Term]) -> LeasesRenewed:
        """Renew the leases of one client; others' renewals may be stored together with these."""
        by_shard: dict[Shard, list[tuple[int, LeaseName, Term, bytes]]] = {}
        for nth, term in enumerate(terms):
            name = self._of(term)
            by_shard.setdefault(self.shard_of(name), []).append((nth, name, term, check_token(term.token)))
        lost: list[int] = []
        unknown: list[int] = []

        async def renew(shard: Shard, asked: list[tuple[int, LeaseName, Term, bytes]]) -> None:
            gather_s = min(self._gather_s(name) for _, name, _, _ in asked)

            def decide(leases: table.Table, turn: table.Decider) -> list[Grant | None]:
                return [leases.renewed(name, term.fence, token, turn) for _, name, term, token in asked]

            try:
                decided = await shard.decide(decide, gather_s=gather_s)
            except ShoalError:
                unknown.extend(nth for nth, _, _, _ in asked)
                return
            for (nth, name, term, _), grant in zip(asked, decided.outcome, strict=True):
                if grant is None:
                    self._forget(name, term.fence)
                    lost.append(nth)
                else:
                    self.know(name, grant, decided.sent_s)

        await asyncio.gather(*(renew(shard, asked) for shard, asked in by_shard.items()))
        return LeasesRenewed(sorted(lost), sorted(unknown))

    async def extended(self, term: Term, ttl_ms: int) -> int:
        """Renew a claim, which may get a longer ttl. Returns its ttl in milliseconds.

        Raises:
            as `renewed`.
        """
        return (await self._renewed(item_of(term), term.fence, check_token(term.token), ttl_ms)).claim.ttl_ms

    async def renewed(self, term: Term) -> str:
        """Renew one lease, at once. Returns the holder's name.

        Raises:
            LeaseLost: it is not the caller's any more.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        return (await self._renewed(self._of(term), term.fence, check_token(term.token))).claim.holder

    async def release(self, request: ReleaseLease) -> int:
        """Release a lease, or withdraw a claim that waits.

        Returns the fencing number of the lease that was released; 0 if none was the caller's.

        Raises:
            NotFound: no holder of the name `to` waits; the lease is kept.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        name = self._named(request.space, request.lease, is_thread=request.thread)
        check_holder(request.to)
        token = check_token(request.token)

        def decide(leases: table.Table, turn: table.Decider) -> int:
            leases.withdraw(name, token)
            fence = leases.release(name, request.fence, token, turn, to=request.to)
            if fence:  # The number of the grant: a caller that got no answer to its claim knows none, and says 0.
                self.end(name, fence)
            return fence

        try:
            return (await self.shard_of(name).decide(decide)).outcome
        except table.NobodyWaits as nobody:
            others = f"those that wait are {', '.join(map(repr, nobody.waiting))}" if nobody.waiting else "nobody waits"
            raise NotFound(
                f"no holder {request.to!r} waits for {described(name)}: {others}. Nothing was written, and you still hold it."
            ) from None

    async def ended(self, request: EndLease) -> int:
        """End a lease that somebody else holds; its term is over as by a release. Returns as `release`.

        Raises:
            NotFound: no holder of the name `to` waits; the lease is kept.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        name = self._named(request.space, request.lease, is_thread=request.thread)

        def decide(leases: table.Table, turn: table.Decider) -> int:
            fence = leases.release(name, request.fence, None, turn, to=request.to)
            if fence:
                self.end(name, fence)
            return fence

        try:
            return (await self.shard_of(name).decide(decide)).outcome
        except table.NobodyWaits:
            raise nobody_waits(request.to, name) from None

    async def read(self, request: ReadLease) -> LeaseState:
        """The holder of a lease; with a `wait`, once that is not what the caller knows any more."""
        name = self._named(request.space, request.lease, is_thread=request.thread)
        shard = self.shard_of(name)
        ends_at = self.ends_at(request.wait)
        while True:
            state = self._state(name, shard, (await shard.read()).grants.get(name))
            if state.mark != request.known or self.left_s(ends_at) <= 0:
                return state
            await self._until_changed(shard, name, state, ends_at)

    def glimpsed(self, space: str, thread: str) -> LeaseState | None:
        """The lease of a thread, as this node was told last; None: it was told nothing."""
        name = LeaseName(space, thread, is_thread=True)
        shard = self.shard_of(name)
        known = shard.glimpse()
        return None if known is None else self._state(name, shard, known.grants.get(name))

    async def listed(self, space: str) -> list[LeaseState]:
        """The leases of a space that are held."""
        return self._held_in(space, [await shard.read() for shard in self._shards])

    async def known(self, space: str) -> list[LeaseState]:
        """The same, as this node was told last. It asks only for what it was never told."""
        return self._held_in(space, [shard.glimpse() or await shard.read() for shard in self._shards])

    def _held_in(self, space: str, tables: Sequence[table.Table]) -> list[LeaseState]:
        check_name("space", space)
        found: list[LeaseState] = []
        for shard, leases in zip(self._shards, tables, strict=True):
            mine = ((name, grant) for name, grant in leases.grants.items() if name.space == space and not table.is_item(name))
            found += [self._state(name, shard, grant) for name, grant in mine]
        return sorted((state for state in found if state.held), key=lambda state: (state.lease, state.thread))

    def count(self, space: str, *, but: bytes = b"") -> int:
        """How many leases and claims of a space are held or waited for, as this node was told last, but for one token's."""
        found = 0
        for shard in self._shards:
            known = shard.glimpse()
            for name, grant in known.grants.items() if known is not None else ():
                if name.space == space:
                    holders = (grant.claim, *grant.waiting) if grant.state != table.OVER else grant.waiting
                    found += sum(claim.token != but for claim in holders)
        return found

    # ── claims of items ───────────────────────────────────────────────────────

    async def withdraw(self, space: str, mark: str, token: bytes) -> None:
        """Release whatever this claim of a worklist's items has got.

        Raises:
            NoQuorum, OutcomeUnknown: as the quorum register.
        """

        def decide(leases: table.Table, turn: table.Decider) -> None:
            for name, fence in leases.take_back(space, mark, token, turn).items():
                self.end(name, fence)

        await self.shard_of(table.item_name(space, mark, b"")).decide(decide)

    async def give_back(self, term: Term) -> None:
        """Release a claim: others may get its item.

        Raises:
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        await self.let_go(item_of(term), term.fence, check_token(term.token))

    async def let_go(self, name: LeaseName, fence: int, token: bytes) -> None:
        """As `give_back`."""
        self.end(name, fence)
        await self.shard_of(name).decide(lambda leases, turn: leases.release(name, fence, token, turn))

    def knows(self, name: LeaseName, fence: int) -> bool:
        """Whether this node accepts, or has accepted, writes of this term or a later one."""
        known = self._known.get(name)
        return (known is not None and known.fence >= fence) or self._ending.get(name, 0) >= fence

    # ── writes under a lease ──────────────────────────────────────────────────

    def admits(self, terms: Sequence[Term]) -> bool:
        """Whether this node knows that none of these terms has ended."""
        now = self._environment.uptime()
        for term in terms:
            known = self._known.get(item_of(term) if term.item else LeaseName(term.space, term.lease, term.thread))
            if known is None or known.fence != term.fence or known.token.hex() != term.token or now >= known.until_s:
                return False
        return True

    async def confirm(self, terms: Sequence[Term]) -> None:
        """Return if this node knows that none of these terms has ended; if need be it renews them.

        Raises:
            LeaseLost: one has ended.
            NoQuorum, OutcomeUnknown: that cannot be known.
        """
        for term in terms:
            if not self.admits((term,)):
                name = self._of(term)
                await self._renewed(name, term.fence, check_token(term.token))
                if not self.admits((term,)):  # It is being released, or was renewed too late.
                    raise lost(name, term.fence, None)

    async def holder(self, name: LeaseName) -> LeaseState:
        """The holder of a lease now. One that is dead is dropped.

        Raises:
            NoQuorum, OutcomeUnknown: that cannot be known.
        """
        shard = self.shard_of(name)
        decided = await shard.decide(lambda leases, turn: leases.grants.get(name))
        return self._state(name, shard, decided.outcome)

    # ── waiting ───────────────────────────────────────────────────────────────

    def ends_at(self, wait_ms: int) -> float:
        """Until when a request waits, by the node's monotonic clock: at most `lease_poll_s`, after which it is sent again."""
        return self._environment.uptime() + min(wait_ms / 1000, self._config.lease_poll_s)

    def left_s(self, ends_at: float) -> float:
        """How long a request may wait still; 0 or less once it may not."""
        return 0.0 if self._waits_ended else ends_at - self._environment.uptime()

    def end_waits(self) -> None:
        """Let no request wait any longer: each is answered with what is so now. The node is about to stop."""
        self._waits_ended = True
        for shard in self._shards:
            shard.stir()

    async def close(self) -> None:
        """End the work that is under way."""
        self.end_waits()
        for shard in self._shards:
            await shard.close()

    # ── decisions ─────────────────────────────────────────────────────────────

    async def _claimed(self, shard: Shard, name: LeaseName, claim: Claim, *, waits: bool) -> Decided[Grant | None]:
        try:
            return await shard.decide(lambda leases, turn: leases.acquire(name, claim, turn, waits=waits))
        except table.Held as held:
            raise self._held(name, shard, held.grant) from None
        except table.QueueFull:
            raise Overloaded(
                f"{LEASE_WAITERS_MAX} claims wait for {described(name)} already. Nothing was written. Try again later.",
                retry_after_s=self._config.lease_poll_s,
            ) from None

    async def _waited(self, shard: Shard, name: LeaseName, claim: Claim, ends_at: float) -> Grant | None:
        """Wait until the claim may have the lease; returns None then, or the present grant if the time is over."""
        while True:
            leases = shard.glimpse()
            grant = None if leases is None else leases.grants.get(name)
            if grant is None or grant.is_of(claim.token):
                return None
            remaining_s = shard.remaining_s(name, grant)
            left_s = self.left_s(ends_at)
            if left_s <= 0:
                return grant
            if remaining_s <= 0:
                return None
            await shard.stirred(min(remaining_s, left_s))

    async def _renewed(self, name: LeaseName, fence: int, token: bytes, ttl_ms: int = 0) -> Grant:
        shard = self.shard_of(name)

        def decide(leases: table.Table, turn: table.Decider) -> tuple[Grant | None, Grant | None]:
            return leases.renewed(name, fence, token, turn, ttl_ms=ttl_ms), leases.grants.get(name)

        decided = await shard.decide(decide)
        grant, present = decided.outcome
        if grant is None:
            self._forget(name, fence)
            raise lost(name, fence, present)
        self.know(name, grant, decided.sent_s)
        return grant

    def _gather_s(self, name: LeaseName) -> float:
        known = self._known.get(name)
        if known is None:
            return 0.0
        return min(LEASE_GATHER_S, max(0.0, known.until_s - self._environment.uptime()) / 10)

    def _forget(self, name: LeaseName, fence: int) -> None:
        known = self._known.get(name)
        if known is not None and known.fence <= fence:
            del self._known[name]

    async def _until_changed(self, shard: Shard, name: LeaseName, state: LeaseState, ends_at: float) -> None:
        """Wait until somebody proposes another holder or queue, the grant is dead, or the time is over."""
        while (left_s := self.left_s(ends_at)) > 0:
            leases = shard.glimpse()
            grant = None if leases is None else leases.grants.get(name)
            if self._state(name, shard, grant).mark != state.mark:
                return
            remaining_s = left_s if grant is None else shard.remaining_s(name, grant)
            if remaining_s <= 0:
                await self.holder(name)
                return
            await shard.stirred(min(remaining_s, left_s))

    def know(self, name: LeaseName, grant: Grant, sent_s: float) -> None:
        """Accept writes of this term; its grant or renewal was sent then, and is stored."""
        until_s = sent_s + holds_s(grant.claim.ttl_ms, self._config.lease_drift_max)
        known = self._known.get(name)
        if self._ending.get(name, 0) >= grant.fence:
            return
        if known is not None and (known.fence, known.until_s) >= (grant.fence, until_s):
            return
        self._known[name] = _Known(grant.fence, grant.claim.token, until_s)
        if len(self._known) > self._known_max:
            now = self._environment.uptime()
            self._known = {name: known for name, known in self._known.items() if known.until_s > now}
            self._known_max = max(64, 2 * len(self._known))

    def end(self, name: LeaseName, fence: int) -> None:
        """From now on this node accepts no write of this term, also if a renewal of it is on its way."""
        self._known.pop(name, None)
        self._ending[name] = max(
            fence, self._ending.pop(name, 0)
        )  # A release may arrive again, later than that of a newer term.
        if len(self._ending) > _ENDING_MAX:
            del self._ending[next(iter(self._ending))]

    # ── names, states and errors ──────────────────────────────────────────────

    def shard_at(self, key: str) -> Shard | None:
        """The shard under this key, if it is one's."""
        return self._by_key.get(key)

    def shard_of(self, name: LeaseName) -> Shard:
        """The shard of a lease."""
        return self._shards[zlib.crc32(table.shard_key(name)) % len(self._shards)]

    def proposed(self, key: str, content: bytes, /) -> None:
        """A content was proposed for a key of the register (`Follower.proposed`)."""
        shard = self._by_key.get(key)
        if shard is not None:
            shard.proposed(content)

    def rebuilt(self) -> None:
        """Terms that were known are over, and so is what was known of the register."""
        self._known.clear()
        for shard in self._shards:
            shard.forget()

    def _of(self, term: Term) -> LeaseName:
        if term.item:
            check_name("space", term.space)
            return item_of(term)
        return self._named(term.space, term.lease, is_thread=term.thread)

    def _named(self, space: str, lease: str, *, is_thread: bool) -> LeaseName:
        check_name("space", space)
        check_name("thread" if is_thread else "lease", lease)
        return LeaseName(space, lease, is_thread)

    def check_ttl(self, ttl_ms: int) -> None:
        """Check how long a lease is to last."""
        least, most = self._config.lease_ttl_s_min, self._config.lease_ttl_s_max
        if not least <= ttl_ms / 1000 <= most:
            raise InvalidInput(
                f"a ttl must be {least:g} to {most:g} seconds (lease_ttl_s_min, lease_ttl_s_max); got {ttl_ms / 1000:g}. "
                "Nothing was written.",
                field="ttl",
            )

    def _state(self, name: LeaseName, shard: Shard, grant: Grant | None) -> LeaseState:
        if grant is None or (grant.state == table.OVER and not grant.waiting):
            return LeaseState(
                name.name, name.is_thread, held=False, holder="", fence=0, ttl=0, until_ms=0, waiting=[], mark="free"
            )
        waiting = [claim.holder for claim in grant.waiting]
        mark = f"{grant.fence}.{grant.state}.{zlib.crc32(b''.join(claim.token for claim in grant.waiting)):x}"
        return LeaseState(
            name.name,
            name.is_thread,
            held=True,
            holder=grant.claim.holder,
            fence=grant.fence,
            ttl=grant.claim.ttl_ms,
            until_ms=self._until_ms(name, shard, grant),
            waiting=waiting,
            mark=mark,
        )

    def _until_ms(self, name: LeaseName, shard: Shard, grant: Grant) -> int:
        return self._environment.now_ms() + int(1000 * max(0.0, shard.remaining_s(name, grant)))

    def _held(self, name: LeaseName, shard: Shard, grant: Grant) -> LeaseHeld:
        if grant.is_unseen:
            left_s = shard.remaining_s(table.REBUILT, grant)
            return LeaseHeld(
                f"{described(name)} may still be held by a client of a member that was lost: the cluster was rebuilt, and "
                f"grants no lease to another client for {left_s:.0f} s more. Nothing was written. Wait, or try again later.",
                holder="",
                fence=grant.fence,
                until_ms=self._environment.now_ms() + int(left_s * 1000),
            )
        if grant.state == table.OVER:
            left_s = max(0.0, shard.remaining_s(name, grant))
            return LeaseHeld(
                f"{described(name)} was given up, or ended by a rebuild of the cluster, and writes of its last term may be "
                f"accepted for {left_s:.1f} s more. Nothing was written. Wait for it (wait=), or try again later.",
                holder="",
                fence=grant.fence,
                until_ms=self._environment.now_ms() + int(left_s * 1000),
            )
        return self.held(name, self._state(name, shard, grant))

    def held(self, name: LeaseName, state: LeaseState, advice: str = "Wait for it (wait=), or try again later.") -> LeaseHeld:
        """The error for a lease that somebody else holds."""
        left_s = max(0, state.until_ms - self._environment.now_ms()) / 1000
        by = repr(state.holder) if state.holder else "another client"
        return LeaseHeld(
            f"{by} holds {described(name)} (fencing number {state.fence}), for {left_s:.1f} s more unless it renews it. "
            f"Nothing was written. {advice}",
            holder=state.holder,
            fence=state.fence,
            until_ms=state.until_ms,
        )
