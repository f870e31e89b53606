"""Bugs around the fsync: what is told, shown or counted before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import encode_shipment
from shoal.crdt.dot import Origin
from shoal.errors import ReadOnly
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.incarnation import Incarnation
from shoal.node.peers.replica import NodeReplica
from shoal.node.peers.replicator import Replicator
from shoal.node.service import Service
from shoal.node.transaction import Transaction
from shoal.node.writes.issuing import Logged
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, Waiter
from tests.mutants.mutant import Mutant


def acknowledged_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = Service.__init__

    class Eager:
        """A group commit for which all that is written is durable."""

        def __init__(self, commit: GroupCommit) -> None:
            self._commit = commit

        def __getattr__(self, name: str) -> object:
            return getattr(self._commit, name)

        async def wait_durable(self, number: int) -> None:
            return None

        def when_durable(self, number: int, waiter: Waiter, lane: str = "", /) -> None:
            waiter(None)

    def init(self: Service, context: NodeContext, *args: object, **options: object) -> None:
        sound(self, replace(context, commit=Eager(context.commit)), *args, **options)  # type: ignore[arg-type]

    patch.setattr(Service, "__init__", init)


def shown_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: object) -> None:
        return None

    patch.setattr(Database, "durable", at_once)


def pushed_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = Replicator._logged

    def eager(self: Replicator, logged: Logged) -> None:
        sound(self, logged)
        self._protocol.issued([encode_shipment(logged.shipment)])
        self._carry_out()

    patch.setattr(Replicator, "_logged", eager)


def had_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = Replicator._apply

    def eager(self: Replicator, peer: bytes, ready: list[Arrival], again: list[Arrival]) -> None:
        sound(self, peer, ready, again)
        self._protocol.stored([(peer, arrival.shipment.partition, arrival.dot, 1) for arrival in ready])

    patch.setattr(Replicator, "_apply", eager)


def vectors_told_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeReplica, "durable", NodeReplica.applied)


def an_fsync_covers_what_came_during_it(patch: pytest.MonkeyPatch) -> None:
    sound = GroupCommit._settle

    def settle(self: GroupCommit, number: int) -> None:
        sound(self, self.written)

    patch.setattr(GroupCommit, "_settle", settle)


def an_unknown_outcome_told_as_refused(patch: pytest.MonkeyPatch) -> None:
    def refused(self: GroupCommit) -> ReadOnly:
        return ReadOnly(f"Storage failed and refuses writes: {self.failed}. Nothing was written.")

    patch.setattr(GroupCommit, "_outcome_unknown", refused)


def a_full_disk_is_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    sound = GroupCommit.when_durable

    def when_durable(self: GroupCommit, number: int, waiter: Waiter, lane: str = "", /) -> None:
        sound(self, number, lambda error: waiter(None))

    patch.setattr(GroupCommit, "when_durable", when_durable)


def an_operation_in_two_writes(patch: pytest.MonkeyPatch) -> None:
    sound = GroupCommit.write

    def write(
        self: GroupCommit, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /, *begun: Any
    ) -> int:
        objects = {key: value for key, value in rows.items() if key[:1] == keys.OBJECT}
        rest = {key: value for key, value in rows.items() if key not in objects}
        if objects and rest:
            sound(self, rest)
            return sound(self, objects, ranges)
        return sound(self, rows, ranges, *begun)

    patch.setattr(GroupCommit, "write", write)


def an_opening_goes_on_with_the_last_origin(patch: pytest.MonkeyPatch) -> None:
    sound = Incarnation.origin

    def origin(self: Incarnation, transaction: Transaction) -> Origin:
        if self._origin is None and self.previous is not None:
            self._origin = Origin(self.previous)
            self.settle(transaction)
        return sound(self, transaction)

    patch.setattr(Incarnation, "origin", origin)


MUTANTS = (
    Mutant(acknowledged_before_the_fsync, "a write is acknowledged before its fsync", ("2", "3")),
    Mutant(shown_before_the_fsync, "a read shows what is not durable", ("2", "3a", "7")),
    Mutant(pushed_before_the_fsync, "an operation is pushed before its fsync", ("2",)),
    Mutant(had_before_the_fsync, "a peer acknowledges before its fsync", ("2", "3")),
    Mutant(vectors_told_before_the_fsync, "a node tells peers the vector that it has applied, not the durable one", ("2", "3")),
    Mutant(an_fsync_covers_what_came_during_it, "what is written during an fsync counts as covered by it", ("2", "3", "3a")),
    Mutant(an_unknown_outcome_told_as_refused, "after a failed fsync its writers are told that nothing was written", ("13",)),
    Mutant(a_full_disk_is_taken_for_success, "a failed fsync is taken for a success", ("2", "3", "3a")),
    Mutant(an_operation_in_two_writes, "an operation's rows are written after its log entry", ("2", "4")),
    Mutant(an_opening_goes_on_with_the_last_origin, "an opening writes under the last one's origin", ("1", "3", "4", "5")),
)
