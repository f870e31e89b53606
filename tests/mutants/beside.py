"""Bugs in pushing operations beside the own fsync."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from shoal.cluster.delivery import Arrival
from shoal.cluster.messages import Shipment
from shoal.cluster.operation import Tip
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import BadOperation
from shoal.node.node import Node
from shoal.node.peers.incoming import Incoming, _Ahead, _Batch
from shoal.node.peers.outgoing import Settling
from shoal.node.peers.replicator import Replicator
from shoal.node.writes.issuing import Logged
from shoal.storage.commit import GroupCommit, Waiter
from tests.mutants.mutant import Mutant


def a_push_counts_as_held(patch: pytest.MonkeyPatch) -> None:
    sound = Replication.deliver

    def deliver(self: Replication, peer: bytes, operations: Sequence[Shipment | Arrival], now: float) -> None:
        sound(self, peer, operations, now)
        shipments = [each.shipment if isinstance(each, Arrival) else each for each in operations]
        self._state(peer).known.take([(each.partition, each.origin, each.sequence) for each in shipments])

    patch.setattr(Replication, "deliver", deliver)


def an_own_lost_operation_is_refused(patch: pytest.MonkeyPatch) -> None:
    sound = Incoming._apply

    def apply(self: Incoming, batch: _Batch, place: _Ahead, arrival: Arrival) -> Tip:
        if self._incarnation.is_over(arrival.dot.origin):
            raise BadOperation("operation of this directory, which it does not hold. Nothing of it was written.", reason="own")
        return sound(self, batch, place, arrival)

    patch.setattr(Incoming, "_apply", apply)


def a_mark_has_what_came_from_its_node(patch: pytest.MonkeyPatch) -> None:
    sound = Replication.stored

    def stored(
        self: Replication,
        runs: Iterable[tuple[bytes, int, Dot, int]],
        issued: Mapping[tuple[int, Origin], int] | None = None,
    ) -> None:
        runs = list(runs)
        sound(self, runs, issued)
        for peer, partition, dot, _ in runs:
            self.mark(peer).note(partition, VersionVector.of(dot))

    patch.setattr(Replication, "stored", stored)


def watchers_hear_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = Node._begun

    def begun(self: Node, number: int) -> None:
        sound(self, number)
        self._feed.publish(number)

    patch.setattr(Node, "_begun", begun)


def a_pushed_write_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """Its durability here is not waited for: the others have it."""
    sound = GroupCommit.when_durable

    def when_durable(self: GroupCommit, number: int, waiter: Waiter, lane: str = "", /) -> None:
        if self._on_begun is not None and self.written >= number > self.durable and self._runner is not None:
            waiter(None)
        else:
            sound(self, number, waiter, lane)

    patch.setattr(GroupCommit, "when_durable", when_durable)


def whatever_is_written_is_pushed_beside_its_fsync(patch: pytest.MonkeyPatch) -> None:
    sound = Settling.issued

    def issued(self: Settling, logged: Logged) -> None:
        sound(self, Logged(logged.number, logged.partition, logged.shipment, logged.space))

    patch.setattr(Settling, "issued", issued)


def an_origin_is_pushed_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicator, "_begin", lambda self: None)


MUTANTS = (
    Mutant(a_push_counts_as_held, "who pushed an operation counts as one that holds it", ("2", "3", "19"), "escapes"),
    Mutant(an_own_lost_operation_is_refused, "a node refuses what it lost itself in a crash", ("4", "15"), "escapes"),
    Mutant(a_mark_has_what_came_from_its_node, "who lost what was not durable is taken for set back", ("2", "19"), "escapes"),
    Mutant(watchers_hear_before_the_fsync, "watches hear of an operation when it is pushed", ("2", "18"), "escapes"),
    Mutant(a_pushed_write_is_answered_at_once, "a write is answered when it is pushed", ("2", "3")),
    Mutant(
        whatever_is_written_is_pushed_beside_its_fsync,
        "what an opening takes over from past ones is pushed before its fsync",
        ("2",),
    ),
    Mutant(an_origin_is_pushed_before_it_is_durable, "an origin is pushed that its directory may forget", ("2",)),
)
