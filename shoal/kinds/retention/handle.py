"""The rules of retention of a space: `space.retention`."""

from __future__ import annotations

from datetime import timedelta

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.kinds.retention import flows
from shoal.kinds.retention.flows import Retained
from shoal.kinds.retention.state import Rule
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import as_duration_ms


@named
class SpaceRetention:
    """Standing rules of a space: which checkpoints, events and threads may go. The nodes carry them out by themselves.

    Heads, labelled checkpoints, those that open steps were begun on, and those where branches part stay in any case. Setting
    and unsetting take the right `admin` in the space of the nodes, `.shoal`, because the nodes act by it.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def set(
        self,
        *,
        prefix: str = "",
        keep_last: int | None = None,
        older_than: timedelta | float | None = None,
        threads_older_than: timedelta | float | None = None,
        events_older_than: timedelta | float | None = None,
        finished_older_than: timedelta | float | None = None,
        keep_labelled: bool = False,
        yes: bool = False,
        durability: Durability | None = None,
    ) -> requests.RetentionRules:
        """Set the rule of the threads whose names begin with `prefix`, in place of the one that is there.

        A checkpoint goes if it is neither among the last `keep_last` of a branch nor younger than `older_than`; an event of a
        journal if it is older than `events_older_than`; an item of a worklist if it was done before
        `finished_older_than`, so that it can be added again; a thread as a whole if nothing was written to it for
        `threads_older_than`, and nothing in it waits. `keep_labelled`: not if it has a labelled checkpoint. A thread has the
        rule of the longest prefix. Of rules that are set at two nodes at once both hold: what goes is let go by each.

        Raises:
            InvalidInput: it lets nothing go; or it would leave nothing but heads, or no thread, and `yes` is not set.
        """
        rule = self._rule(
            prefix, keep_last, older_than, threads_older_than, events_older_than, finished_older_than, keep_labelled
        )
        return await flows.set_rule(self._connection, rule, leave_nothing=yes, durability=durability)

    async def get(self) -> requests.RetentionRules:
        """The rules, and what the node that serves has done by rules since it started."""
        return await self._connection.read(requests.ReadRules(self._space))

    async def unset(
        self, prefix: str = "", *, dry_run: bool = False, durability: Durability | None = None
    ) -> requests.RetentionRules:
        """Remove the rule of a prefix; what went is gone. Returns the rules that are left, or with `dry_run` would be."""
        if dry_run:
            return await flows.left_without(self._connection, self._space, prefix)
        return await flows.unset_rule(self._connection, self._space, prefix, durability=durability)

    async def preview(
        self,
        *,
        prefix: str = "",
        keep_last: int | None = None,
        older_than: timedelta | float | None = None,
        threads_older_than: timedelta | float | None = None,
        events_older_than: timedelta | float | None = None,
        finished_older_than: timedelta | float | None = None,
        keep_labelled: bool = False,
    ) -> Retained:
        """Say what a rule would let go now, thread by thread; without bounds, what the rules that are set let go.

        Nothing is written. It looks at each thread, so it takes a while in a large space.
        """
        rule = self._rule(
            prefix, keep_last, older_than, threads_older_than, events_older_than, finished_older_than, keep_labelled
        )
        tried = None if rule == Rule(self._space) else rule
        return await flows.carry_out(self._connection, self._space, tried=tried, threads_max=None)

    async def run(self) -> Retained:
        """Carry the rules out now, at the node that serves, rather than with its next look.

        Raises:
            Unavailable: the node does not believe its clock; nothing goes.
            OutcomeUnknown: a part is done. Run it again to do the rest.
        """
        return await flows.carry_out(self._connection, self._space, dry_run=False, threads_max=None)

    def _rule(
        self,
        prefix: str,
        keep_last: int | None,
        older_than: timedelta | float | None,
        threads_older_than: timedelta | float | None,
        events_older_than: timedelta | float | None,
        finished_older_than: timedelta | float | None,
        keep_labelled: bool,
    ) -> Rule:
        return Rule(
            self._space,
            prefix,
            keep_last,
            as_duration_ms(older_than, what="older_than"),
            as_duration_ms(threads_older_than, what="threads_older_than"),
            as_duration_ms(events_older_than, what="events_older_than"),
            keep_labelled,
            finished_older_than_ms=as_duration_ms(finished_older_than, what="finished_older_than"),
        )
