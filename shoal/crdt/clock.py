"""Hybrid logical clock (Kulkarni et al., 2014), as one integer.

Law: a reading is greater than everything the clock has issued or seen. The
upper 48 bits are milliseconds of wall time, the lower 16 a counter. If the counter
overflows, it runs into the milliseconds, which keeps the order. A time far ahead
is accepted, because refusing it would stall replication and clamping it would break
causal order; `ahead_ms` lets the caller report it. A time past `END_MS` is refused
unless it follows another one that was seen: a clock that has reached the end can
only issue such times.
"""

from __future__ import annotations

COUNTER_BITS = 16
END_MS = 1 << 47  # The year 6429: half of what 48 bits hold. Clocks that have reached it count on in the other half.

_STEP_MS_MAX = 3600 * 1000  # How far a reading past the end may be from the greatest one seen.


class HybridClock:
    """Mutable; one per node. Wall time is an argument, in milliseconds since 1970."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def issue(self, wall_ms: int) -> int:
        """A reading for a new operation: above all before it, and at or above `wall_ms`, unless that is past `END_MS`."""
        self.last = max(self.last + 1, min(wall_ms, END_MS - 1) << COUNTER_BITS)
        return self.last

    def observe(self, hlc: int) -> None:
        """Advance to a reading made elsewhere, or before a restart."""
        self.last = max(self.last, hlc)

    def ahead_ms(self, wall_ms: int) -> int:
        """How far the clock runs ahead of `wall_ms`; 0 when it does not."""
        return max(0, (self.last >> COUNTER_BITS) - wall_ms)


def is_plausible(hlc: int, *, seen: int) -> bool:
    """Whether a clock can have issued `hlc`, if the greatest reading seen here is `seen`.

    A reading past `END_MS` must follow another one. With a fixed end, a node that accepted a time just
    before it could issue no operation that its peers accept.
    """
    return hlc < END_MS << COUNTER_BITS or hlc <= seen + (_STEP_MS_MAX << COUNTER_BITS)


def wall_ms_of(hlc: int) -> int:
    """The milliseconds in a reading: for display, never for order."""
    return hlc >> COUNTER_BITS


def made_ms(hlc: int, wall_ms: int, now_ms: int) -> int:
    """When something was made, as far as its age counts: the later of its two times.

    A node whose clock was behind still gave it a logical time that is not before those of others. One that is ahead of `now_ms`
    comes from a clock that was wrong, and says nothing.
    """
    logical_ms = wall_ms_of(hlc)
    return max(wall_ms, logical_ms) if logical_ms <= now_ms else wall_ms
