"""Marks in the store: in which order they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

from shoal.cluster.membership import epochs
from shoal.cluster.replication import Replication
from shoal.config import Config
from shoal.crdt.dot import Origin
from shoal.node.membership.roster import Roster
from shoal.node.peers.admission import Marking
from shoal.node.peers.members import Members
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import MemoryStorage


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


def test_entries_of_a_mark_go_with_its_address() -> None:
    node, origin = b"n" * 16, Origin(b"o" * 16)
    rows = {keys.address(node): b"n9:7400", keys.entry(node, 3, origin): (7).to_bytes(8, "big")}
    storage = MemoryStorage(rows)
    commit, config = Mock(spec=GroupCommit), Config()
    commit.configure_mock(**{"write.side_effect": storage.write})
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1"]), own="a:1")))
    marking = Marking(storage, cast(GroupCommit, commit), members=members, config=config, now=0.0)
    marking.load()
    marking._drop(cast(Replication, Mock(spec=Replication)), node)
    assert keys.vectors(storage) == {}
    assert not keys.is_any(storage)


def test_marks_wait_for_the_interval() -> None:
    node, origin = b"n" * 16, Origin(b"o" * 16)
    storage = MemoryStorage({keys.address(node): b"n9:7400"})
    commit, protocol, config = Mock(spec=GroupCommit), Mock(spec=Replication), Config()
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1", "n9:7400"]), own="a:1")))
    marking = Marking(storage, cast(GroupCommit, commit), members=members, config=config, now=0.0)
    marking.load()
    written = []
    for now in (0.0, config.mark_interval_s / 2, config.mark_interval_s):
        protocol.mark.return_value.unwritten = {(1, origin): 5}
        marking.record(cast(Replication, protocol), now)
        written.append(commit.write.call_count)
    assert written == [1, 1, 2]


def test_a_lost_directory_is_written_down() -> None:
    commit = Mock(spec=GroupCommit)
    members = Members(cast(Roster, SimpleNamespace(record=epochs.founded(["a:1", "n9:7400"]), own="a:1")))
    marking = Marking(MemoryStorage(), cast(GroupCommit, commit), members=members, config=Config(), now=0.0)
    marking.load()
    marking.lose(b"l" * 16, "n9:7400")
    marking.record(cast(Replication, Mock(spec=Replication)), 0.0)
    assert [call.args[0] for call in commit.write.call_args_list] == [{keys.meta("lost/") + b"l" * 16: b"n9:7400"}]
