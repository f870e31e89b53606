"""Quotas: what a space may hold and do at this node.

Laws:
- The limits of a space are those of its record, and for what that lacks or says wrongly those of the configuration.
- A record counts from the moment at which it is applied here, whichever node wrote it. No content of it can stop the node.
- A write is refused before anything is done for it, and only what a client asks is: operations of peers, and the node's own
  work, are counted and never refused, or replicas would differ.
- A space that holds what it may, or more, takes writes that remove, so that it can be left again: if they make no object,
  and carry no large value. A write that begins below a limit is made as a whole, so it may pass the limit once.
- A lease, a claim or a presence that is there already is renewed whatever the limit says: it may not be lost to a quota.
- The space of the nodes themselves has no quota.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from math import isfinite
from types import TracebackType
from typing import Any, Protocol

from msgspec import structs

from shoal import values
from shoal.crdt.dot import VersionVector
from shoal.errors import Overloaded, ShoalError
from shoal.names import RESERVED, check_name
from shoal.node.catalog import is_empty
from shoal.node.context import NodeContext
from shoal.node.handler import Answers, Target
from shoal.node.spaces.usage import Usage
from shoal.protocol import requests
from shoal.protocol.base import Shape, declaration_of
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import QUOTAS, Follow, ObjectWrite, Push, Quota, QuotaView, ReadQuota, Subscription
from shoal.protocol.requests.families import operations
from shoal.records import NamedTuple
from shoal.storage.keys import Kind

RECORDS = Target(Kind.MAP, RESERVED, QUOTAS)
"""The map of the records."""
_OF_RECORDS = RECORDS.partition

_FREEING = frozenset(kind for kind in operations(ObjectWrite) if declaration_of(kind).frees)
_CARRIED = {
    kind: [field.name for field in structs.fields(kind) if Shape.VALUE in getattr(field.type, "__metadata__", ())]
    for kind in _FREEING
}
_CARRIED_BYTES_MAX = 1024  # Of the values of a write that removes, such as the result of a completed item.
_AGAIN_S = 5.0  # Until what was deleted may be swept.
_OPEN_AGAIN_S = 1.0
_WAIT_S_MIN = 0.01
_KNOWN_MAX = 4096  # Spaces whose record and rate are remembered.
_REACHED_S = 10.0  # For so long a status names a quota that was reached.
_REACHED_MAX = 1000  # In a status.
_UNITS = {
    "bytes": "bytes",
    "objects": "objects",
    "writes_per_s": "writes a second",
    "watchers": "watchers",
    "documents": "open documents",
    "leases": "leases and claims",
    "presences": "clients that are present",
}

_HOW = {"bytes": "Delete what is not needed", "objects": "Delete what is not needed", "writes_per_s": "Write more slowly"}
_HOW |= {"leases": "Wait until some have ended", "presences": "Wait until some have left"}
_NONE = Quota()

Pushes = AbstractAsyncContextManager[AsyncIterator[Push]]


class Asked(Protocol):
    """A write, or several, and their objects: one for each."""

    @property
    def targets(self) -> Sequence[Target]:
        """The objects."""
        ...

    @property
    def writes(self) -> Sequence[ObjectWrite[Any]]:
        """The writes."""
        ...


class Known(NamedTuple):
    """The quota of a space, as its record and the configuration say."""

    limits: Quota
    recorded: dict[str, float]
    trouble: str


class _Open:
    """The open watches and documents of one space."""

    __slots__ = ("documents", "watchers")

    def __init__(self) -> None:
        self.watchers = 0
        self.documents = 0


class _Rate:
    """The writes of one space: it may save up those of a second."""

    __slots__ = ("at", "left")

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at


class Quotas:
    """Applies the quotas of one node. `read` answers a read of a map from the rows applied here; `holds` tells whether there is
    an object; `counts` has what others count, by the limit's name: what a space has of it.
    """

    def __init__(
        self,
        context: NodeContext,
        usage: Usage,
        *,
        read: Callable[[requests.ReadMap, Target], Any],
        holds: Callable[[Target], bool],
        counts: Mapping[str, Callable[[str], int]],
    ) -> None:
        self._usage = usage
        self._storage = context.storage
        self._partitions = context.partitions
        self._read = read
        self._holds = holds
        self._counts = counts
        self._monotonic = context.environment.monotonic
        self._default = Quota(
            context.config.quota_bytes,
            context.config.quota_objects,
            context.config.quota_writes_per_s,
            context.config.quota_watchers,
            context.config.quota_documents,
        )
        self._seen: VersionVector | None = None  # The vector at which the records were read.
        self._known: dict[str, Known] = {}
        self._rates: dict[str, _Rate] = {}
        self._open: dict[str, _Open] = {}
        self._reached: dict[tuple[str, str], float] = {}  # Space and quota → when it was reached last.
        self.refusals = 0
        """Requests that were refused in this opening, because a quota was reached."""
        self.answers: Answers = {ReadQuota: self._view}

    # ── limits ────────────────────────────────────────────────────────────────

    def of(self, space: str) -> Known:
        """The quota of a space as it is now."""
        vector = self._partitions.load(_OF_RECORDS).vector
        if vector is not self._seen:
            self._seen = vector
            self._known.clear()
        known = self._known.get(space)
        if known is None:
            known = Known(_NONE, {}, "") if space == RESERVED else self._found(space)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[space] = known
        return known

    def _found(self, space: str) -> Known:
        try:
            [entry] = self._read(requests.ReadMap(RESERVED, QUOTAS, keys=[space]), RECORDS).entries
            packed = entry.siblings[0].value if entry.siblings else None
        except ShoalError as error:  # The map's rows are damaged: repairing them is not this node's own request.
            return Known(self._default, {}, error.message)
        except ValueError:
            packed = None
        return Known(self._default, {}, "") if packed is None else parsed(packed, self._default)

    # ── writes ────────────────────────────────────────────────────────────────

    def check(self, asked: Asked, is_known: Callable[[], bool] = lambda: False) -> None:
        """Check that the spaces of a client's write may take it, and count it. One that was made before is not refused.

        Raises:
            Overloaded: a quota is reached. Nothing was written.
        """
        targets = asked.targets
        for space in {target.space for target in targets} if len(targets) > 1 else (targets[0].space,):
            limits = self.of(space).limits
            if limits == _NONE:
                continue
            own = [each for each in zip(targets, asked.writes, strict=True) if each[0].space == space]
            refusal = self._refusal(space, own, limits)
            if refusal is not None and not is_known():
                self._note(refusal)
                raise refusal

    def concerns(self, asked: Asked) -> bool:
        """Whether a space of this write has a limit: else nothing is compared for it, and nothing counted."""
        targets = asked.targets
        if len(targets) == 1:
            return self.of(targets[0].space).limits != _NONE
        return any(self.of(space).limits != _NONE for space in {target.space for target in targets})

    def give_back(self, asked: Asked) -> None:
        """Give back the allowance for a write that is not made now: it will be checked again."""
        for target in asked.targets:
            rate = self._rates.get(target.space)
            if rate is not None:
                rate.left += 1

    def is_ready(self, asked: Asked) -> bool:
        """Whether nothing that `check` compares is being counted."""
        counted = self._counted(asked)
        return not counted or not any(self._usage.is_awaited(space) for space in counted)

    async def ready(self, asked: Asked) -> None:
        """Wait until what `check` compares is counted, or the wait is too long."""
        for space in self._counted(asked):
            await self._usage.ready(space)

    def _counted(self, asked: Asked) -> list[str]:
        found = []
        for space in {target.space for target in asked.targets} if len(asked.targets) > 1 else (asked.targets[0].space,):
            limits = self.of(space).limits
            if limits.bytes or limits.objects:
                found.append(space)
        return found

    def _frees(self, target: Target, write: ObjectWrite[Any]) -> bool:
        if type(write) not in _FREEING or (declaration_of(type(write)).makes and not self._holds(target)):
            return False
        return sum(len(getattr(write, name)) for name in _CARRIED[type(write)]) <= _CARRIED_BYTES_MAX

    def _refusal(self, space: str, own: Sequence[tuple[Target, ObjectWrite[Any]]], limits: Quota) -> Overloaded | None:
        if (limits.bytes or limits.objects) and not all(self._frees(target, write) for target, write in own):
            use = self._usage.of(space)
            if limits.bytes and use.bytes >= limits.bytes:
                return _reached(space, "bytes", use.bytes, limits.bytes, _AGAIN_S)
            if limits.objects and use.objects >= limits.objects:
                return _reached(space, "objects", use.objects, limits.objects, _AGAIN_S)
        return self._late(space, len(own), limits.writes_per_s) if limits.writes_per_s else None

    def _late(self, space: str, writes: int, per_s: float) -> Overloaded | None:
        now, most = self._monotonic(), max(per_s, 1.0)
        rate = self._rates.get(space)
        if rate is None:
            if len(self._rates) >= _KNOWN_MAX:
                del self._rates[next(iter(self._rates))]  # It begins anew, with what it may write in a second.
            rate = self._rates[space] = _Rate(most, now)
        rate.left = min(most, rate.left + (now - rate.at) * per_s)
        rate.at = now
        # A batch may hold more than a second's writes. It begins once a whole second is saved up, and later writes wait.
        if rate.left < min(writes, most):
            wait_s = max((min(writes, most) - rate.left) / per_s, _WAIT_S_MIN)
            return _reached(space, "writes_per_s", round(most - rate.left, 3), per_s, wait_s)
        rate.left -= writes
        return None

    def _note(self, refusal: Overloaded) -> None:
        place = str(refusal.detail["space"]), str(refusal.detail["quota"])
        self.refusals += 1
        self._reached.pop(place, None)
        self._reached[place] = self._monotonic()
        if len(self._reached) > _REACHED_MAX:
            del self._reached[next(iter(self._reached))]

    def admit(self, space: str, what: str, asked: Callable[[], tuple[int, int]]) -> None:
        """Check that a space may have more of what `counts` counts. `asked` tells how many it has, and how many more it wants.

        Raises:
            Overloaded: the quota is reached. Nothing was written.
        """
        limit = getattr(self.of(space).limits, what)
        if not limit:
            return
        present, more = asked()
        if more and present + more > limit:
            refusal = _reached(space, what, present, limit, _AGAIN_S)
            self._note(refusal)
            raise refusal

    # ── subscriptions ─────────────────────────────────────────────────────────

    def counted(self, subscription: Subscription, pushes: Pushes) -> Pushes:
        """The context of a subscription as one of those that its space may have; it is `Overloaded` if there are as many."""
        what = "documents" if isinstance(subscription, Follow) else "watchers"
        return _Counted(self, subscription.space, what, pushes)

    def _take(self, space: str, what: str) -> None:
        limit = getattr(self.of(space).limits, what)
        opened = self._open.get(space) or self._open.setdefault(space, _Open())
        number = getattr(opened, what)
        if limit and number >= limit:
            refusal = _reached(space, what, number, limit, _OPEN_AGAIN_S)
            self._note(refusal)
            raise refusal
        setattr(opened, what, number + 1)

    def _give_back(self, space: str, what: str) -> None:
        opened = self._open[space]
        setattr(opened, what, getattr(opened, what) - 1)
        if not opened.watchers and not opened.documents:
            self._open.pop(space, None)

    # ── for people ────────────────────────────────────────────────────────────

    async def _view(self, request: ReadQuota, _bookmark: Bookmark) -> QuotaView:
        space = check_name("space", request.space)
        known, use, opened = self.of(space), self._usage.of(space), self._open.get(space) or _Open()
        rate = self._rates.get(space)
        written = 0.0
        if rate is not None and known.limits.writes_per_s:
            left = rate.left + (self._monotonic() - rate.at) * known.limits.writes_per_s
            written = max(0.0, round(max(known.limits.writes_per_s, 1.0) - left, 3))
        counted = {what: count(space) for what, count in self._counts.items()}
        used = Quota(use.bytes, use.objects, written, opened.watchers, opened.documents, **counted)
        empty = is_empty(self._storage, space)
        return QuotaView(space, known.limits, used, known.recorded, use.is_counted, known.trouble, empty)

    @property
    def reached(self) -> list[str]:
        """The quotas that were reached in the last seconds, as "space: quota"."""
        since = self._monotonic() - _REACHED_S
        return sorted(f"{space}: {what}" for (space, what), at in self._reached.items() if at >= since)


def parsed(packed: bytes, default: Quota) -> Known:
    """The quota in a record. It may come from a peer, and from another version: what is wrong in it counts as left out."""
    try:
        record = values.decode(packed)
    except ShoalError:
        return Known(default, {}, "the record cannot be decoded")
    if not isinstance(record, dict):
        return Known(default, {}, "the record is no map of limits")
    recorded: dict[str, float] = {}
    wrong: list[str] = []
    for what in _UNITS:
        if (limit := record.get(what)) is None:
            continue
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if is_number and isfinite(limit) and 0 <= limit < 2**63 and (what == "writes_per_s" or limit == int(limit)):
            recorded[what] = limit if what == "writes_per_s" else int(limit)
        else:
            wrong.append(what)
    trouble = f"the record has no number for {', '.join(wrong)}" if wrong else ""
    return Known(structs.replace(default, **recorded), recorded, trouble)


def _reached(space: str, what: str, used: float, limit: float, again_s: float) -> Overloaded:
    return Overloaded(
        f"the quota of space {space!r} is reached at this node: {used:,g} {_UNITS[what]} of {limit:,g}. Nothing was written. "
        f"{_HOW.get(what, 'Close what is not needed')} and try again in {again_s:.2g} s, or raise the quota with "
        "`shoal space quota`.",
        retry_after_s=again_s,
        space=space,
        quota=what,
        used=used,
        limit=limit,
    )


class _Counted(AbstractAsyncContextManager[AsyncIterator[Push]]):
    """No generator: a loop that ends closes those in any order, and one within another then complains."""

    def __init__(self, quotas: Quotas, space: str, what: str, pushes: Pushes) -> None:
        self._quotas, self._space, self._what, self._pushes = quotas, space, what, pushes

    async def __aenter__(self) -> AsyncIterator[Push]:
        self._quotas._take(self._space, self._what)
        try:
            return await self._pushes.__aenter__()
        except BaseException:
            self._quotas._give_back(self._space, self._what)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._pushes.__aexit__(kind, error, trace)
        finally:
            self._quotas._give_back(self._space, self._what)
