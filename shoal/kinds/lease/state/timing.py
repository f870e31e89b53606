"""When a lease ends, by clocks that nobody has compared.

Laws:
- Each node and each holder measures spans on its own monotonic clock. No times are exchanged.
- Clocks run too fast or too slow by at most `drift`, a share of the time. A holder counts on its lease for `ttl × (1 − drift)`
  after it *sent* its last renewal that succeeded. Others may take the lease once they have *seen* the same grant unrenewed
  for `ttl × (1 + drift)`. They see a renewal after it was sent, so the holder stops before others start (Gray and Cheriton,
  "Leases", 1989).
- A value that was only proposed may be seen, too: it was sent before it was seen.
"""

from __future__ import annotations

from shoal.kinds.lease.state.table import OFFERED, Grant, LeaseName, Table
from shoal.records import NamedTuple


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
