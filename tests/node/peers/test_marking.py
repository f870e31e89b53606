"""Marks in the store: in which order they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

from shoal.cluster.membership import epochs
from shoal.cluster.replication import Replication
from shoal.config import Config
from shoal.node.membership.roster import Roster
from shoal.node.peers.marking import Marking
from shoal.node.peers.members import Members
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.memory import MemoryStorage


def test_marks_of_former_members_are_dropped_in_one_order() -> None:
    """A set of node ids has another order in each process, and a run of the simulator would not repeat."""
    nodes = [bytes([number]) * 16 for number in range(32)]
    storage = MemoryStorage({keys.meta("marked/") + node: b"n9:7400" for node in nodes})
    commit, protocol, config = Mock(spec=GroupCommit), Mock(spec=Replication), Config()
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1"]), own="a:1")))
    marking = Marking(storage, cast(GroupCommit, commit), members=members, config=config, now=0.0)
    marking.load()

    marking.record(cast(Replication, protocol), config.mark_interval_s)

    assert [call.args[0] for call in protocol.forget.call_args_list] == nodes
    assert [next(iter(call.args[0])) for call in commit.write.call_args_list] == [keys.meta("marked/") + node for node in nodes]
