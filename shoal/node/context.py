"""The things of a node that are constant in its life, which its parts share.

Laws:
- Nothing here is replaced between the start and the stop of the node. What changes belongs to the part that changes it.
- A part takes the context, and names the other parts that it works with as arguments of its constructor: at most seven in all.
- A part that calls others back says so where it is declared: by an argument of its constructor, or, if those others are built
  after it, by one method that takes what they pass (`Issuer.replicate`, `Memberships.link_by`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config import Config
from shoal.crdt.dot import HybridClock
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Partitions
from shoal.node.spaces.sharing import Sharing
from shoal.node.turns import Upkeep
from shoal.node.watching.feed import Feed
from shoal.protocol.tracing import Commits
from shoal.storage.cold import ColdStorage
from shoal.storage.commit import GroupCommit, LoggedStorage

WATCH_TELLS_MAX = 1_000_000  # Changes × their subscribers that are still to be told; beyond this, other work waits.


@dataclass(frozen=True, slots=True)
class NodeContext:
    """One node, from its start to its stop. Each of these exists once in it."""

    config: Config
    environment: Environment  # The clocks, the randomness and the threads that it may use.
    storage: ColdStorage
    commit: GroupCommit  # Through which everything is written.
    incarnation: Incarnation  # The node's identity: its directory, and this opening of it.
    clock: HybridClock  # Of the operations that it issues and applies.
    partitions: Partitions  # Their vectors and tips: what the node holds.
    feed: Feed  # To the subscribers.
    sharing: Sharing  # The turns of the spaces.
    traced: Commits  # The traced writes that are not durable yet.
    upkeep: Upkeep  # The tasks that last as long as the node.


def context_of(storage: LoggedStorage, commit: GroupCommit, config: Config, environment: Environment) -> NodeContext:
    """The context of a node over an open storage, as it starts.

    Raises:
        StoreCorrupt: the last incarnation did not stop cleanly, and its log has a hole.
    """
    clock = HybridClock()
    return NodeContext(
        config=config,
        environment=environment,
        storage=ColdStorage(storage),
        commit=commit,
        incarnation=Incarnation(storage, environment.entropy),
        clock=clock,
        partitions=Partitions(storage, clock),
        feed=Feed(
            subscribers_max=config.subscribers_max,
            bytes_max=config.subscription_bytes_max,
            tells_max=WATCH_TELLS_MAX,
        ),
        sharing=Sharing(environment.monotonic, environment.give_way),
        traced=Commits(),
        upkeep=Upkeep(),
    )
