"""A table of leases as one small value, and the rule by which a lease ends without common clocks.

A table of leases, as one small value: grants, renewals, releases, and the queue of those that wait.

    acquire · renew · release · withdraw · tidy   →   the table changes, and the caller stores it by compare-and-set
    rebuilt   →   the content with which a register that lost its majority goes on

Laws:
- A grant takes the table's next fencing number. The numbers only grow, also when a lease is dropped and taken again, and
  past those that the rows of an object name, which an earlier register gave.
- A lease leaves its holder only if the holder gives it up, or if `Decider.is_dead` says so. If another node than the one
  that stores the release may still accept writes of that term, the lease is `OVER` and is not granted before it is dead.
- Those that wait are served in the order in which they came. A holder that gives the lease up may name one of them.
- After a rebuild no term of before goes on: each is `OVER`, since a lost member may have granted its lease to another claim.
  And no lease is granted to a new claim before those that only lost members knew of are dead.
- What a space has in a table grows only while it is at most `SHARE` times what is free (Choudhury and Hahne, "Dynamic Queue
  Length Thresholds", 1998). So one space alone gets nearly all of it, and however many are greedy, another one finds room.
- Each renewal has a new random `beat`. So one that was proposed and never stored is not taken for one that was.

When a lease ends, by clocks that nobody has compared.

Laws:
- Each node and each holder measures spans on its own monotonic clock. No times are exchanged.
- Clocks run too fast or too slow by at most `drift`, a share of the time. A holder counts on its lease for `ttl × (1 − drift)`
  after it *sent* its last renewal that succeeded. Others may take the lease once they have *seen* the same grant unrenewed
  for `ttl × (1 + drift)`. They see a renewal after it was sent, so the holder stops before others start (Gray and Cheriton,
  "Leases", 1989).
- A value that was only proposed may be seen, too: it was sent before it was seen.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

import msgspec

from shoal.records import NamedTuple

KEY = "lease/"
"""The beginning of the names of the register's keys that hold tables; the number of the shard follows."""

SHARE = 7  # One space alone gets 7/8 of a table, two 7/15 each.

COUNTED_MAX = 1 << 53
"""Fencing numbers that rows name count below this: clients count exactly so far, and a peer that lies uses up no more."""

OFFERED, HELD, OVER = 0, 1, 2
"""The states of a grant. One that is offered is held once its new holder has taken it."""


class LeaseName(NamedTuple):
    """A lease of a space: of one of its threads, or one with a name of its own."""

    space: str
    name: str
    is_thread: bool = False


REBUILT = LeaseName("", "rebuilt")
"""The place of all leases that only lost members may know of. No space has an empty name."""

ITEM_BYTES = 12  # Of an item's id, in the name of its claim.
_MARK = "\0"  # No lease's own name begins with it.


@lru_cache(maxsize=1024)
def worklist_mark(thread: str, worklist: str) -> str:
    """The beginning of the names of all claims of a worklist's items."""
    return _MARK + b64encode(sha256(f"{thread}\0{worklist}".encode()).digest()[:9]).decode()


def item_name(space: str, mark: str, item: bytes) -> LeaseName:
    """The lease that is a claim of an item."""
    return LeaseName(space, mark + b64encode(item[:ITEM_BYTES]).decode())


def is_item(name: LeaseName) -> bool:
    """Whether a lease is a claim of an item."""
    return name.name.startswith(_MARK)


def shard_key(name: LeaseName) -> bytes:
    """Names with the same key are in one shard: all claims of one worklist are."""
    own = name.name[: len(_MARK) + 12] if is_item(name) else name.name
    return f"{name.space}\0{own}\0{int(name.is_thread)}".encode()


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """One wish to hold a lease. Its token is random, and known to its holder and to the nodes."""

    token: bytes
    holder: str  # For people, and to hand over.
    ttl_ms: int
    group: bytes = b""  # Of a claim of an item: the group that it counts in.


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """A lease that is granted, and those that wait for it."""

    fence: int
    claim: Claim
    beat: bytes  # Of its last renewal.
    via: bytes  # The node through which it was renewed last.
    state: int = OFFERED
    shared: bool = False  # Whether another node than `via` may still accept writes of this term.
    waiting: tuple[Claim, ...] = ()

    @property
    def is_unseen(self) -> bool:
        """Whether this stands for all leases that only lost members may know of (`REBUILT`)."""
        return not self.via

    def is_of(self, token: bytes) -> bool:
        """Whether this claim has the lease, or has it on offer."""
        return self.state != OVER and self.claim.token == token


class Group(NamedTuple):
    """An item of this group may be claimed if fewer than so many of the group are; 0: any number."""

    name: str = ""
    claims_max: int = 0


class HandOut(NamedTuple):
    """Claims of items of one worklist, and the items that they may get: the first ones first."""

    space: str
    mark: str
    items: Iterable[bytes]
    claims: Sequence[Claim]


class Handed(NamedTuple):
    """An item that a claim got."""

    item: bytes
    grant: Grant


class HandedOut(NamedTuple):
    """The grants to the claims, in their order."""

    found: list[Handed | None]
    is_full: bool  # Whether a claim got nothing because there is no room for another one.


class Decider(NamedTuple):
    """The knowledge of a node when it changes the table."""

    node: bytes
    beat: bytes  # Random, new for each write.
    is_dead: Callable[[LeaseName, Grant], bool]  # Whether a grant has been seen unrenewed for long enough.
    is_alone: Callable[[LeaseName, Grant], bool]  # Whether only this node has renewed it for so long.
    waiters_max: int
    bytes_max: int  # Of the content.


class Held(Exception):
    """The lease is another claim's."""

    def __init__(self, grant: Grant) -> None:
        super().__init__()
        self.grant = grant


class NobodyWaits(Exception):
    """The lease cannot be handed to a holder that does not wait for it. `waiting` names those that do."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__()
        self.waiting = waiting


class QueueFull(Exception):
    """As many claims wait as may."""


class Table:
    """The leases of one shard, to be changed and stored again."""

    def __init__(self, last: int = 0, grants: dict[LeaseName, Grant] | None = None) -> None:
        self.last = last  # The last fencing number.
        self.grants: dict[LeaseName, Grant] = {} if grants is None else grants

    @classmethod
    def unpack(cls, content: bytes) -> Table:
        """The table in a content; an empty content is an empty table."""
        if not content:
            return cls()
        last, rows = _decoder.decode(content)
        return cls(last, {LeaseName(*row[:3]): row[3] for row in rows})

    def pack(self) -> bytes:
        """The content; equal for equal tables."""
        return _encoder.encode((self.last, [(*name, self.grants[name]) for name in sorted(self.grants)]))

    def acquire(self, name: LeaseName, claim: Claim, turn: Decider, *, waits: bool) -> Grant | None:
        """Take a lease, or stand in its queue; a repeated claim keeps its place. Returns None while the claim waits.

        Raises:
            Held: it is another claim's, and this one does not wait.
            QueueFull: too many wait already.
        """
        self._settle(name, turn)
        grant = self.grants.get(name)
        if grant is None and REBUILT in self.grants:
            raise Held(self.grants[REBUILT])
        if grant is None:
            return self._grant(name, claim, (), turn, state=HELD)
        if grant.is_of(claim.token):
            return self._renewed(name, grant, turn)
        is_waiting = any(other.token == claim.token for other in grant.waiting)
        if not waits:
            self.withdraw(name, claim.token)
            raise Held(grant)
        if not is_waiting:
            if len(grant.waiting) >= turn.waiters_max:
                raise QueueFull
            self.grants[name] = msgspec.structs.replace(grant, waiting=(*grant.waiting, claim))
        return None

    def hand_out(self, wanted: HandOut, group_of: Callable[[bytes], Group], turn: Decider) -> HandedOut:
        """Grant each claim the first item that nobody has; a repeated claim gets what it got."""
        found: dict[bytes, Handed] = {}
        here = [name for name in self.grants if name.space == wanted.space and name.name.startswith(wanted.mark)]
        owned = {self.grants[name].claim.token for name in here if self.grants[name].state != OVER}
        waiting = deque(claim for claim in wanted.claims if claim.token not in owned)
        repeated = owned.intersection(claim.token for claim in wanted.claims)
        counts = Counter(grant.claim.group for grant in self.grants.values())
        left_bytes = self.left_bytes(wanted.space, turn.bytes_max - _SPARE_BYTES) if waiting else 0
        is_full = False
        for item in wanted.items:
            if not (waiting or repeated):
                break
            name = item_name(wanted.space, wanted.mark, item)
            grant = self.grants.get(name)
            if grant is not None and grant.state != OVER and grant.claim.token in repeated:
                repeated.remove(grant.claim.token)
                found[grant.claim.token] = Handed(item, self._renewed(name, grant, turn))
            if grant is not None or not waiting:
                continue
            group = group_of(item)
            hashed = sha256(f"{wanted.space}\0{wanted.mark}\0{group.name}".encode()).digest()[:8] if group.name else b""
            if group.name and group.claims_max and counts[hashed] >= group.claims_max:
                continue
            claim = msgspec.structs.replace(waiting[0], group=hashed) if group.name else waiting[0]
            granted = self._grant(name, claim, (), turn, state=HELD)
            left_bytes -= len(_encoder.encode((*name, granted)))
            if is_full := left_bytes < 0:
                del self.grants[name]
                self.last -= 1
                waiting.clear()
                continue
            counts[hashed] += 1
            found[waiting.popleft().token] = Handed(item, granted)
        return HandedOut([found.get(claim.token) for claim in wanted.claims], is_full)

    def left_bytes(self, space: str, bytes_max: int) -> int:
        """How many bytes a space may add, of a table that may have so many; below 0 if it has more than its share already."""
        own = sum(len(_encoder.encode((*name, grant))) for name, grant in self.grants.items() if name.space == space)
        return (SHARE * (bytes_max - len(self.pack())) - own) // (1 + SHARE)

    def take_back(self, space: str, mark: str, token: bytes, turn: Decider) -> dict[LeaseName, int]:
        """Release the items of a worklist that this claim has. Returns them, with their fencing numbers."""
        items = [name for name in self.grants if name.space == space and name.name.startswith(mark)]
        return {name: fence for name in items if (fence := self.release(name, 0, token, turn))}

    def drop(self, name: LeaseName, fence: int, token: bytes) -> None:
        """End a lease, whoever accepts its writes: there is nothing left to do under it."""
        grant = self.grants.get(name)
        if grant is not None and grant.fence == fence and grant.is_of(token):
            del self.grants[name]

    def renewed(self, name: LeaseName, fence: int, token: bytes, turn: Decider, *, ttl_ms: int = 0) -> Grant | None:
        """Renew a lease, which may get a longer ttl; None if it is not this claim's any more."""
        grant = self.grants.get(name)
        if grant is None or grant.fence != fence or not grant.is_of(token):
            return None
        if ttl_ms > grant.claim.ttl_ms:
            # Never a shorter one: a node may accept writes for the rest of the old one.
            grant = msgspec.structs.replace(grant, claim=msgspec.structs.replace(grant.claim, ttl_ms=ttl_ms))
        return self._renewed(name, grant, turn)

    def count_past(self, fence: int) -> None:
        """Grant greater fencing numbers than this one, which the rows of an object name.

        A register that began anew over older data counts from 1: of a restored backup, or once a store that was alone has
        other members.
        """
        if fence < COUNTED_MAX:
            self.last = max(self.last, fence)

    def counted(self, name: LeaseName, token: bytes, past: int, turn: Decider) -> Grant | None:
        """Give this claim's lease a greater fencing number than `past`; None if it is not this claim's any more."""
        grant = self.grants.get(name)
        if grant is None or not grant.is_of(token):
            return None
        self.count_past(past)
        if grant.fence <= past:
            grant = msgspec.structs.replace(grant, fence=self.last + 1)
            self.last = grant.fence
        return self._renewed(name, grant, turn)

    def release(self, name: LeaseName, fence: int, token: bytes | None, turn: Decider, *, to: str = "") -> int:
        """Give a lease up, to the first that waits or to the holder called `to`.

        Without a `token`, an operator ends whatever claim has it under this fencing number. With a `fence` of 0, whatever this
        claim was granted. Returns the fencing number of what was given up; 0 if the lease
        was not this claim's.

        Raises:
            NobodyWaits: no holder of this name waits.
        """
        grant = self.grants.get(name)
        if grant is None or (fence and grant.fence != fence) or grant.state == OVER:
            return 0
        if token is not None and not grant.is_of(token):
            return 0
        if to:
            chosen = next((claim for claim in grant.waiting if claim.holder == to), None)
            if chosen is None:
                raise NobodyWaits([claim.holder for claim in grant.waiting])
            rest = tuple(claim for claim in grant.waiting if claim is not chosen)
            grant = msgspec.structs.replace(grant, waiting=(chosen, *rest))
        if grant.via == turn.node and (not grant.shared or turn.is_alone(name, grant)):
            self._pass_on(name, grant, turn)
        else:
            self.grants[name] = msgspec.structs.replace(grant, state=OVER)
        return grant.fence

    def withdraw(self, name: LeaseName, token: bytes) -> None:
        """A claim does not wait any more."""
        grant = self.grants.get(name)
        if grant is not None and any(claim.token == token for claim in grant.waiting):
            waiting = tuple(claim for claim in grant.waiting if claim.token != token)
            self.grants[name] = msgspec.structs.replace(grant, waiting=waiting)

    def tidy(self, turn: Decider) -> None:
        """Pass on every lease that is dead, or drop it."""
        for name in list(self.grants):
            self._settle(name, turn)

    def _settle(self, name: LeaseName, turn: Decider) -> None:
        grant = self.grants.get(name)
        if grant is not None and turn.is_dead(name, grant):
            self._pass_on(name, grant, turn)

    def rebuild(self, *, by: int, beat: bytes, unseen_ms: int) -> None:
        """Go on after a rebuild, with fencing numbers that are higher `by`; unseen leases may last for another `unseen_ms`."""
        self.last += by
        for name, grant in self.grants.items():
            self.grants[name] = msgspec.structs.replace(grant, beat=beat, state=OVER, waiting=())
        if unseen_ms:
            self.grants[REBUILT] = Grant(self.last, Claim(beat, "", unseen_ms), beat, b"", OVER)

    def _pass_on(self, name: LeaseName, grant: Grant, turn: Decider) -> None:
        if grant.waiting:
            self._grant(name, grant.waiting[0], grant.waiting[1:], turn, state=OFFERED)
        else:
            del self.grants[name]

    def _grant(self, name: LeaseName, claim: Claim, waiting: tuple[Claim, ...], turn: Decider, *, state: int) -> Grant:
        self.last += 1
        grant = self.grants[name] = Grant(self.last, claim, turn.beat, turn.node, state, waiting=waiting)
        return grant

    def _renewed(self, name: LeaseName, grant: Grant, turn: Decider) -> Grant:
        is_moved = grant.state == HELD and grant.via != turn.node
        shared = is_moved or (grant.shared and not turn.is_alone(name, grant))
        renewed = msgspec.structs.replace(grant, beat=turn.beat, via=turn.node, state=HELD, shared=shared)
        self.grants[name] = renewed
        return renewed


def rebuilt(content: bytes, *, by: int, beat: bytes, unseen_ms: int) -> bytes:
    """The content with which a shard goes on after a rebuild; see `Table.rebuild`."""
    table = Table.unpack(content)
    table.rebuild(by=by, beat=beat, unseen_ms=unseen_ms)
    return table.pack()


_SPARE_BYTES = 16  # The count of the grants and the last fencing number take more bytes as they grow.
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, bool, Grant]]])


def holds_s(ttl_ms: int, drift: float) -> float:
    """How long a holder counts on its lease, from when it sent the renewal."""
    return ttl_ms / 1000 * (1 - drift)


def waits_s(ttl_ms: int, drift: float) -> float:
    """How long others wait, from when they saw the renewal."""
    return ttl_ms / 1000 * (1 + drift)


class _Seen(NamedTuple):
    fence: int
    beat: bytes
    at: float  # When this renewal was first seen.


class _Alone(NamedTuple):
    fence: int
    via: bytes
    at: float  # Since when all renewals that were stored came through this node.


class Sightings:
    """The sightings of the leases of one shard by one node, on its own clock. Bounded by the shard's size."""

    def __init__(self, *, drift: float, offer_ms: int) -> None:
        self._drift = drift
        self._offer_ms = offer_ms
        self._seen: dict[LeaseName, _Seen] = {}
        self._alone: dict[LeaseName, _Alone] = {}

    def glimpse(self, table: Table, at: float) -> None:
        """Somebody proposed this content, up to now, `at`. It may never be stored."""
        before, self._seen = self._seen, {}
        for name, grant in table.grants.items():
            seen = before.get(name)
            is_same = seen is not None and (seen.fence, seen.beat) == (grant.fence, grant.beat)
            self._seen[name] = seen if seen is not None and is_same else _Seen(grant.fence, grant.beat, at)

    def see(self, table: Table, at: float) -> None:
        """The table had this content at some time up to now, `at`. Call it with each content that this node builds on."""
        self.glimpse(table, at)
        before, self._alone = self._alone, {}
        for name, grant in table.grants.items():
            alone = before.get(name)
            is_same = alone is not None and (alone.fence, alone.via) == (grant.fence, grant.via)
            self._alone[name] = alone if alone is not None and is_same else _Alone(grant.fence, grant.via, at)

    def remaining_s(self, name: LeaseName, grant: Grant, now: float) -> float:
        """How long this grant must stay unrenewed until others may take it; not above 0 once they may."""
        ttl_ms = self._offer_ms if grant.state == OFFERED else grant.claim.ttl_ms
        seen = self._seen.get(name)
        if seen is None or (seen.fence, seen.beat) != (grant.fence, grant.beat):
            return waits_s(ttl_ms, self._drift)
        return seen.at + waits_s(ttl_ms, self._drift) - now

    def is_dead(self, name: LeaseName, grant: Grant, now: float) -> bool:
        """Whether this grant has been seen unrenewed for long enough."""
        return self.remaining_s(name, grant, now) <= 0

    def is_alone(self, name: LeaseName, grant: Grant, now: float) -> bool:
        """Whether `grant.via` alone has renewed it for so long that no other node accepts writes of this term any more."""
        alone = self._alone.get(name)
        if alone is None or (alone.fence, alone.via) != (grant.fence, grant.via):
            return False
        return now - alone.at >= waits_s(grant.claim.ttl_ms, self._drift)
