"""Whether this node's clock agrees with those of the other members.

Nothing here reads a clock: times are arguments, in milliseconds. `steady_ms` is a clock that
nobody can set, and that means nothing elsewhere. Laws:

- A node's *lead* is its wall clock less its steady clock. It changes only if the wall clock is set, so what was once
  heard of a peer's clock stays true while there is no link, and a step of the own clock shows without a message.
- The knowledge of a peer's clock is an interval that holds it for certain, as wide as a round trip.
- A clock is wrong if a majority of all members, counted over the list of members, have clocks that are
  behind it by more than the bound, or ahead of it. Fewer prove nothing: either side may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from shoal.errors import InvalidValue
from shoal.records import NamedTuple

NOT_HEARD = -1
_TIME_MS_MAX = 1 << 53


class Clock(Struct, array_like=True, frozen=True, tag=43):
    """The sender's clocks. One that echoes no stamp is answered at once, by one that does."""

    wall_ms: int
    steady_ms: int  # The receiver returns it as `echo_ms`.
    echo_ms: int = NOT_HEARD  # The receiver's steady clock, as it said on the current link,
    held_ms: int = 0  # so long ago.


class Leads(NamedTuple):
    """The leads with which a node's clock is not known to be wrong."""

    least: float
    most: float


ANY = Leads(float("-inf"), float("inf"))


class Clocks:
    """The clocks of a node's peers, as far as it knows them. Mutable."""

    def __init__(self, *, skew_ms_max: int) -> None:
        self._skew_ms_max = skew_ms_max
        self._stamps: dict[bytes, tuple[int, int]] = {}  # By peer: its last stamp on the current link, and when it came.
        self._leads: dict[bytes, tuple[int, int]] = {}  # By peer: between these is its wall clock less our steady clock.

    def began(self, peer: bytes) -> None:
        """A link from a peer begins: a stamp from an older one may be from before its machine was restarted."""
        self._stamps.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """Forget a node that is gone for good."""
        self._stamps.pop(peer, None)
        self._leads.pop(peer, None)

    def message(self, peer: bytes, *, wall_ms: int, steady_ms: int) -> Clock:
        """The message to a peer that is due now."""
        stamp, came_ms = self._stamps.get(peer, (NOT_HEARD, steady_ms))
        return Clock(wall_ms, steady_ms, stamp, steady_ms - came_ms)

    def heard(self, peer: bytes, clock: Clock, *, steady_ms: int) -> None:
        """Take what a peer told."""
        self._stamps[peer] = clock.steady_ms, steady_ms
        if 0 <= clock.echo_ms <= steady_ms:
            # Sent before it came, and after our stamp, which it echoes, had come there.
            least, most = clock.wall_ms - steady_ms, clock.wall_ms - clock.held_ms - clock.echo_ms
            if least <= most:
                self._leads[peer] = least, most

    def lead_of(self, peer: bytes) -> float | None:
        """The likeliest lead of a peer, over our steady clock."""
        known = self._leads.get(peer)
        return None if known is None else sum(known) / 2

    def differs(self, peer: bytes, lead: float) -> bool:
        """Whether a peer's clock is for certain further from one with this lead than the bound."""
        least, most = self._leads.get(peer, ANY)
        return lead < least - self._skew_ms_max or lead > most + self._skew_ms_max

    def allowed(self, peers: Collection[bytes], *, size: int) -> Leads:
        """The leads that no majority of `size` members contradicts; `peers` are those of them that were ever reached."""
        majority = size // 2 + 1
        known = [self._leads[peer] for peer in peers if peer in self._leads]
        if len(known) < majority:
            return ANY
        latest = sorted((least for least, _ in known), reverse=True)
        earliest = sorted(most for _, most in known)
        return Leads(latest[majority - 1] - self._skew_ms_max, earliest[majority - 1] + self._skew_ms_max)


def check(clock: Clock) -> None:
    """
    Raises:
        InvalidValue: it holds times that no clock shows.
    """
    times = clock.wall_ms, clock.steady_ms, clock.echo_ms - NOT_HEARD, clock.held_ms
    if not all(0 <= time < _TIME_MS_MAX for time in times):
        raise InvalidValue("a peer tells an impossible time of its clock. Nothing was written.")
