"""Compares this node's clock with its peers', and refuses to issue operations while it is wrong.

Law: a clock that is wrong stops nothing but what would carry its time. Reads, replication and votes go on.
"""

from __future__ import annotations

from shoal.cluster.comparing import ANY, NOT_HEARD, Clock, Clocks
from shoal.config import Config
from shoal.errors import ClockWrong
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.environment import Environment
from shoal.node.peers.members import Members
from shoal.node.peers.replica import Outlets

_STEPPED_MS = 1000  # If the clock was set by so much, the peers are told at once.


class ClockComparison:
    """`own` is this node."""

    def __init__(self, own: bytes, members: Members, outlets: Outlets, *, environment: Environment, config: Config) -> None:
        self._own = own
        self._members = members
        self._environment = environment
        self._outlets = outlets
        self._interval_s = config.clock_interval_s
        self._skew_ms_max = config.clock_skew_max_ms
        self._clocks = Clocks(skew_ms_max=config.clock_skew_max_ms)
        self._allowed = ANY
        self._due = 0.0
        self._told_lead: float | None = None  # At the last time when all peers were told.
        self._logged: list[str] = []

    def check(self, now_ms: int) -> None:
        """Check whether an operation may carry the time that this node's clock shows.

        Raises:
            ClockWrong: a majority of the members have clocks that differ by more than `clock_skew_max_ms`.
        """
        least, most = self._allowed
        if not least <= now_ms - self._environment.monotonic() * 1000 <= most:
            raise ClockWrong(
                f"{self.wrong} Nothing was written. Write to another node, or send it again once the clock is set."
            )

    # ── links ─────────────────────────────────────────────────────────────────

    def admitted(self, node: bytes) -> None:
        """A link from a node begins."""
        self._clocks.began(node)

    def linked(self, node: bytes) -> None:
        """Messages can be sent to a node from now on."""
        self._tell(node)

    def forget(self, node: bytes) -> None:
        """Forget a node that is gone for good."""
        self._clocks.forget(node)
        self._compare()

    def heard(self, node: bytes, clock: Clock) -> None:
        """A node told the time."""
        self._clocks.heard(node, clock, steady_ms=self._steady_ms())
        if clock.echo_ms == NOT_HEARD:
            self._tell(node)
        self._compare()

    def tick(self, now: float) -> None:
        """Tell the time if it is due, or if the clock was set."""
        lead = self._lead()
        stepped = self._told_lead is not None and abs(lead - self._told_lead) > _STEPPED_MS
        if now >= self._due or stepped:
            self._due, self._told_lead = now + self._interval_s, lead
            for node in sorted(self._members.linked_nodes - {self._own}):
                self._tell(node)
        if stepped:
            self._compare()

    # ── for people ────────────────────────────────────────────────────────────

    @property
    def wrong(self) -> str:
        """If a majority of the members contradict this node's clock: by how much, and what to do; else empty."""
        lead = self._lead()
        if self._allowed.least <= lead <= self._allowed.most:
            return ""
        others = sorted(self._members.name_of(node) for node in self._others() if self._clocks.differs(node, lead))
        bound_s = self._skew_ms_max / 1000
        by_s = max(self._allowed.least - lead, lead - self._allowed.most) / 1000 + bound_s
        way = "ahead of" if lead > self._allowed.most else "behind"
        return (
            f"this node's clock is wrong: it is {by_s:,.1f} s {way} those of a majority of the members ({', '.join(others)}); "
            f"clock_skew_max_ms allows {bound_s:g} s. Set it, with NTP or by hand; the node notices at once."
        )

    @property
    def differing(self) -> list[str]:
        """The clocks that differ from this node's by more than the bound."""
        lead, wrong = self._lead(), self.wrong
        known = [node for node in self._others() if self._clocks.lead_of(node) is not None]
        differing = [node for node in known if self._clocks.differs(node, lead)]
        if wrong:
            advice = "."
        elif len(known) - len(differing) + 1 >= self._members.needed("quorum"):
            advice = ". Set its clock."
        else:
            advice = ". Set both: no majority tells which one is wrong."
        told = sorted(f"{self._members.name_of(node)}'s clock is {self._shown(node, lead)} this node's" for node in differing)
        return [each for each in (wrong, *(text + advice for text in told)) if each]

    def ahead_ms(self, node: bytes) -> int | None:
        """How far a node's clock is ahead of this one's; None if that is not known."""
        lead = self._clocks.lead_of(node)
        return None if lead is None else round(lead - self._lead())

    def _shown(self, node: bytes, lead: float) -> str:
        by_s = ((self._clocks.lead_of(node) or 0.0) - lead) / 1000
        return f"{abs(by_s):,.1f} s {'ahead of' if by_s > 0 else 'behind'}"

    # ── inside ────────────────────────────────────────────────────────────────

    def _others(self) -> set[bytes]:
        return self._members.nodes - {self._own}

    def _steady_ms(self) -> int:
        return int(self._environment.monotonic() * 1000)

    def _lead(self) -> float:
        return self._environment.now_ms() - self._environment.monotonic() * 1000

    def _tell(self, node: bytes) -> None:
        wall_ms = max(0, self._environment.now_ms())
        self._outlets.send((node,), self._clocks.message(node, wall_ms=wall_ms, steady_ms=self._steady_ms()))

    def _compare(self) -> None:
        """Follow what changed. The log tells each difference once, however its size drifts."""
        self._allowed = self._clocks.allowed(self._others(), size=self._members.size)
        lead = self._lead()
        found = ["wrong"] if self.wrong else []
        found += sorted(self._members.name_of(node) for node in self._others() if self._clocks.differs(node, lead))
        if found == self._logged:
            return
        self._logged = found
        for difference in self.differing:
            log(events.CLOCKS_DIFFER, difference=difference)
        if not found:
            log(events.CLOCKS_AGREE)
