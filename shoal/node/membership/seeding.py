"""Finds the first members of the cluster by seeds, for a node that is configured with these and with their number.

Law: until the members are agreed on, the node reads and writes what it owns; every majority is counted over the configured
number, so nothing that needs one can be had.
"""

from __future__ import annotations

import logging

from shoal.cluster.membership import notices as founding
from shoal.cluster.membership.notices import FirstMembers as Founding
from shoal.cluster.membership.notices import Founder
from shoal.cluster.peering import Identity
from shoal.node.membership.roster import Roster, readable
from shoal.storage import keys

_log = logging.getLogger("shoal.node")

_ROW = keys.meta("founding")


class Seeding:
    """`size` is the configured number of members."""

    def __init__(self, roster: Roster, *, size: int) -> None:
        self._roster = roster
        stored = roster.kept(_ROW)
        self._founder = Founder(roster.own, size, None if stored is None else readable(founding.decode, stored))
        self.is_over = False
        self._settle()

    @property
    def members(self) -> tuple[str, ...]:
        """The members that this node reports to others: the list that it has confirmed, or none."""
        return () if self._founder.confirmed is None else self._founder.confirmed.members

    @property
    def told(self) -> str:
        """For people: what is missing."""
        return "" if self.is_over else self._founder.told

    async def heard(self, peers: list[Identity]) -> None:
        """Nodes were found by the seeds, and told what they have confirmed.

        Raises:
            ReadOnly, StorageFull: a decision could not be written.
        """
        self._founder.heard(peers)
        proposal = self._founder.proposal
        if proposal is not None:
            await self._confirm(Founding(proposal))
        if self._founder.is_agreed and not self.is_over:
            assert self._founder.confirmed is not None
            await self._confirm(Founding(self._founder.confirmed.members, is_agreed=True))
        self._settle()

    async def _confirm(self, confirmed: Founding) -> None:
        await self._roster.keep(_ROW, founding.encode(confirmed))
        self._founder.confirmed = confirmed

    def _settle(self) -> None:
        confirmed, joins = self._founder.confirmed, self._founder.joins
        if self.is_over or self._roster.epoch:
            self.is_over = True
        elif confirmed is not None and confirmed.is_agreed:
            self._begin(confirmed.members)
        elif joins is not None:
            self._begin((*joins, self._roster.own))  # As if they were configured: they refuse it until it is added.

    def _begin(self, members: tuple[str, ...]) -> None:
        self.is_over = True
        _log.info("the members are %s", ", ".join(members))
        self._roster.found(members)
