"""The parts of a database that exchange operations with peers, and compare rows with them.

Law: a store without peers does not import it.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.config import Config
from shoal.crdt.clock import HybridClock
from shoal.node.collection.garbage import Collector
from shoal.node.collection.generations import Generations
from shoal.node.handler import Memories
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Partitions
from shoal.node.peers.operations.incoming import Incoming
from shoal.node.peers.operations.outgoing import Outgoing
from shoal.node.verification.evidence import Evidence
from shoal.node.verification.rebuilding import Forget, Rebuilder
from shoal.node.watching.feed import Feed
from shoal.node.writes.erasing import Eraser
from shoal.storage.commit import GroupCommit, LoggedStorage


class Exchange:
    """The parts of a database that only peers need. Each is the only one of its database."""

    def __init__(
        self,
        storage: LoggedStorage,
        commit: GroupCommit,
        *,
        partitions: Partitions,
        generations: Generations,
        clock: HybridClock,
        incarnation: Incarnation,
        memories: Memories,
        eraser: Eraser,
        garbage: Collector,
        feed: Feed,
        forget: Forget,
        keyed: Callable[[int], None],
        config: Config,
    ) -> None:
        self.incoming = Incoming(
            storage,
            commit,
            partitions=partitions,
            clock=clock,
            incarnation=incarnation,
            memories=memories,
            eraser=eraser,
            feed=feed,
            key_window_s=config.key_window_s,
        )
        self.incoming.on_keyed = keyed
        self.outgoing = Outgoing(storage, partitions, generations, config)
        self.evidence = Evidence(storage, partitions, config)
        self.rebuilder = Rebuilder(
            storage,
            commit,
            partitions=partitions,
            generations=generations,
            garbage=garbage,
            forget=forget,
            config=config,
        )
