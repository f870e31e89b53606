"""A toy cluster of the pure rule: nodes learn of epochs at any time, count what they know, and change members at random.

What a majority acknowledged is known to every later majority, and no two sets of nodes that share nobody both decide.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record

STEPS = 400


class Node:
    """`told` are the vectors of others by which it decides whether it has caught up in its epoch."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.holds: set[int] = set()
        self.told: dict[str, set[int]] = {}


class Cluster:
    """The register is one list of records here: its own safety is tested elsewhere."""

    def __init__(self, seed: int, hands_over: Callable[[Record, dict[str, Node]], bool]) -> None:
        self.random = Random(seed)
        self.chosen = [epochs.founded([f"{name}:1" for name in "abc"])]
        self.nodes = {address: Node(self.chosen[0]) for address in self.chosen[0].members}
        self.acknowledged: set[int] = set()
        self.lost: list[str] = []
        self._number = 0
        self._hands_over = hands_over

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choices((self.write, self.adopt, self.tell, self.read, self.change), (2, 6, 4, 4, 3))[0]()

    def _some(self, addresses: tuple[str, ...]) -> list[str]:
        return [address for address in addresses if self.random.random() < 0.7]

    def adopt(self) -> None:
        """A node hears of a later record."""
        node = self.random.choice(list(self.nodes.values()))
        newer = self.random.choice(self.chosen)
        if newer.epoch > node.record.epoch:
            node.record, node.told = newer, {}

    def write(self) -> None:
        """A node issues an operation, some hold it, and it counts the copies that it may."""
        address, node = self.random.choice(list(self.nodes.items()))
        if address not in node.record.members:
            return
        self._number += 1
        node.holds.add(self._number)
        told = [other for other in self._some(node.record.everyone) if other in self.nodes and other != address]
        if len(told) > 1 and node.record.electorate.decides([address, *told[1:]]):
            del told[0]  # As few as are needed, so that most do not hold it.
        for other in told:
            self.nodes[other].holds.add(self._number)
        is_current = all(self.nodes[other].record.epoch <= node.record.epoch for other in told)  # Else it counts nothing.
        if is_current and node.record.electorate.decides([address, *told]):
            self.acknowledged.add(self._number)

    def tell(self) -> None:
        """A node tells another one what it holds; that one fetches it."""
        (_, node), (address, other) = self.random.choices(list(self.nodes.items()), k=2)
        if node.record.epoch == other.record.epoch:
            node.told[address] = set(other.holds)
        node.holds |= other.holds if self.random.random() < 0.3 else set()

    def read(self) -> None:
        """A node asks a majority what it holds: nothing acknowledged before may be missing."""
        address, node = self.random.choice(list(self.nodes.items()))
        before = set(self.acknowledged)
        asked = {address, *(other for other in self._some(node.record.everyone) if other in self.nodes)}
        if any(self.nodes[other].record.epoch > node.record.epoch for other in asked):
            return
        if node.record.electorate.decides(asked):
            found = set().union(*(self.nodes[other].holds for other in asked))
            self.lost += [f"{address} in {node.record}: {sorted(before - found)}"] if before - found else []

    def change(self) -> None:
        record = self.chosen[-1]
        knowing = [address for address, node in self.nodes.items() if node.record.epoch == record.epoch]
        if record.change is None:
            if record.electorate.decides(knowing):
                self._begin(record)
        elif not record.change.is_joint:
            if record.electorate.decides(knowing):
                self.chosen.append(epochs.advance(record, directories={}))
        elif record.electorate.decides(knowing) and self._hands_over(record, self.nodes):
            self.chosen.append(epochs.advance(record, directories={}))

    def _begin(self, record: Record) -> None:
        joins, leaves = "", ""
        if len(record.members) < 5 and self.random.random() < 0.8:
            joins = f"{'abcdefghij'[self.random.randrange(10)]}{record.epoch}:1"
        if len(record.members) > 2 and (not joins or self.random.random() < 0.8):
            leaves = self.random.choice(record.members)
        if joins or leaves:
            kind = "replace" if joins and leaves else "add" if joins else "forget"
            self.chosen.append(epochs.begin(record, kind, joins=joins, leaves=leaves, directories={}))  # type: ignore[arg-type]
            if joins:
                self.nodes[joins] = Node(self.chosen[0])


def caught_up(record: Record, nodes: dict[str, Node]) -> list[str]:
    """The nodes that hold all that a majority of the old list told in this epoch."""
    found = []
    for address in record.target:
        node = nodes[address]
        told = {address: node.holds, **node.told} if address in record.members else node.told
        held = [other for other, vector in told.items() if other in record.members and vector <= node.holds]
        if node.record.epoch == record.epoch and len(held) > len(record.members) // 2:
            found.append(address)
    return found


def by_the_rule(record: Record, nodes: dict[str, Node]) -> bool:
    voting = [address for address, node in nodes.items() if node.record.epoch == record.epoch]
    return epochs.is_ready(record, caught_up=caught_up(record, nodes), voting=voting)


@pytest.mark.answers("members-change-safely", note="a toy cluster at random, with two planted bugs beside it")
@pytest.mark.parametrize("seed", range(150))
def test_acknowledged_changes_are_known_to_every_later_majority(seed: int) -> None:
    cluster = Cluster(seed, by_the_rule)
    cluster.run()
    assert cluster.lost == []


def test_the_runs_change_members_and_acknowledge_writes() -> None:
    clusters = [Cluster(seed, by_the_rule) for seed in range(30)]
    for cluster in clusters:
        cluster.run()
    assert sum(cluster.chosen[-1].epoch for cluster in clusters) > 100
    assert sum(len(cluster.acknowledged) for cluster in clusters) > 200


def finds(hands_over: Callable[[Record, dict[str, Node]], bool]) -> bool:
    for seed in range(300):
        cluster = Cluster(seed, hands_over)
        cluster.run()
        if cluster.lost:
            return True
    return False


def test_a_change_that_is_done_before_the_new_list_holds_everything_is_found() -> None:
    assert finds(lambda record, nodes: True)


def test_a_change_that_asks_only_one_node_of_the_old_list_is_found() -> None:
    def of_one(record: Record, nodes: dict[str, Node]) -> bool:
        held = [
            address
            for address in record.target
            if any(other in record.members and vector <= nodes[address].holds for other, vector in nodes[address].told.items())
        ]
        return len(held) > len(record.target) // 2

    assert finds(of_one)
