"""What the trials share: how a reopened store is judged, and what a trial has to show for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from shoal.config import Config
from shoal.node.environment import Environment
from shoal.node.node import Node
from shoal.storage.commit import LoggedStorage
from simulation.judging.checkers import DotLedger, check_found, check_storage
from simulation.judging.found import find
from simulation.judging.history import History


@dataclass(slots=True)
class Tally:
    """That a trial passed is worth as much as these are large."""

    crashes: int = 0
    while_opening: int = 0  # Of the crashes.
    acknowledged: int = 0
    seen: int = 0
    unknown: int = 0  # Writes whose outcome the crashes took with them.
    lost: int = 0  # Of the unknown ones, those that are not there: they show that a crash took something.

    def plus(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Judge:
    """Opens what a crash has left, as a node, and compares it with the history."""

    def __init__(self, *, config: Config, environment: Callable[[], Environment]) -> None:
        self.dots = DotLedger()
        self.tally = Tally()
        self._config = config
        self._environment = environment

    async def open(self, storage: LoggedStorage, history: History) -> Node:
        """A node on `storage`, which it closes when it stops.

        Raises:
            InvariantViolated: the store is not what the history demands.
            StoreCorrupt: the node does not open it.
        """
        check_storage(history, storage, dots=self.dots, config=self._config)
        node = Node(storage, config=self._config, environment=self._environment())
        try:
            found = await find(node.session())
            check_found(history, found)
        except BaseException:
            await node.stop()
            raise
        there = {number for place in found.places() for number in found.numbers(place)}
        # A register holds its last number only, a counter none.
        unknown = [write for write in history.unknown if write.kind not in ("add", "assign")]
        self.tally.acknowledged, self.tally.seen = len(history.acknowledged), history.seen
        self.tally.unknown = len(unknown)
        self.tally.lost = sum(write.number not in there for write in unknown)
        return node
