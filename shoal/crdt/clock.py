"""Hybrid logical clock (Kulkarni et al., 2014), as one integer.

Law: a reading is greater than everything the clock has issued or seen. The
upper 48 bits are milliseconds of wall time, the lower 16 a counter; a counter
that overflows runs into the milliseconds, which keeps the order and costs
nothing. A time far ahead is accepted, because refusing it would stall
replication and clamping it would break causal order; `ahead_ms` lets the caller
report it.
"""

from __future__ import annotations

COUNTER_BITS = 16


class HybridClock:
    """Mutable; one per node. Wall time is an argument, in milliseconds since 1970."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def issue(self, wall_ms: int) -> int:
        """A reading for a new operation: above all before it, and at or above `wall_ms`."""
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    def observe(self, hlc: int) -> None:
        """Take note of a reading made elsewhere, or before a restart."""
        self.last = max(self.last, hlc)

    def ahead_ms(self, wall_ms: int) -> int:
        """How far the clock runs ahead of `wall_ms`; 0 when it does not."""
        return max(0, (self.last >> COUNTER_BITS) - wall_ms)


def wall_ms_of(hlc: int) -> int:
    """The milliseconds in a reading: for display, never for order."""
    return hlc >> COUNTER_BITS
