"""Whether this node's directory counts among its peers, and the records of that.

Laws:
- A learner becomes an owner once it holds all that it must and its admission is
  durable; only then does it say so. A directory that began empty serves from then on: a cluster is founded by the word
  of all its members that they hold what this one holds, which is nothing, and a wiped member comes back by a majority's.
- A node of which a member says that it is none is not admitted.
- While a change of members is joint, a node says that it has caught up once it holds all that a majority of the old list,
  itself included, and a leaving node that hands over reported in this epoch.
- If a peer reports that an owner's directory was set back, the owner is a learner at once.

Keeps the marks of the other owners (`shoal.cluster.peer_state`) in this node's store (`shoal.storage.keys`).

Laws:
- Changes of the marks are written at most once per interval, in the same group commit as other writes.
- There is one mark for each configured address: that of the directory that was last reached there.
- A directory whose place another one took is remembered without its mark, until it is forgotten by the members: the latest.

A crash loses the changes of the last interval. A mark may then say too little, but never too much: a start leaves out what is
retired here (`shoal.cluster.peer_state`).

The partitions in which this node lacks operations that have left the logs of its peers.

Law: only a snapshot brings what these operations made. A partition is listed until this node holds what the peer's base
covers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from shoal.cluster.peer_state import Reset
from shoal.cluster.replication import Replication
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.context import NodeContext
from shoal.node.peers.members import Members
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage


class Admission:
    """`forget_votes` returns the rows by which a directory that was set back gives up its votes."""

    def __init__(
        self,
        context: NodeContext,
        protocol: Replication,
        members: Members,
        *,
        forget_votes: Callable[[], dict[bytes, bytes | None]],
    ) -> None:
        self._protocol = protocol
        self._commit = context.commit
        self._members = members
        self._incarnation = context.incarnation
        self._forget_votes = forget_votes
        self._write: int | None = None  # The write that makes this learner an owner.
        self._set_back_by: bytes | None = None  # The peer that reported a set-back, until that is recorded.

    def seek(self) -> None:
        """Write the admission, if this is a learner that holds all that it must; see whether past origins have ended."""
        ends = self._protocol.ends
        if ends is not None and all(member.node and ends.known_by(member.node) for member in self._members.all):
            self._protocol.end()
        learning = self._protocol.learning
        if learning is None or self._write is not None or self._commit.failed is not None:
            return
        teachers, needed, everyone = self._members.teachers
        others = teachers - {self._incarnation.node}
        learners = {node for node in others if not self._protocol.is_member(node)}
        if self._members.roster.is_admissible and learning.is_done(others, needed=needed, everyone=everyone, learners=learners):
            with suppress(ShoalError):  # A later tick tries again.
                self._write = self._commit.write(*self._incarnation.admission(has_others=everyone > 0))
                self._set_back_by = None  # A crash before it is durable does no harm: peers report the set-back again.

    def durable(self, number: int) -> bool:
        """All writes up to this number are durable. Returns whether this node became an owner by that."""
        if self._write is None or self._write > number:
            return False
        self._write = None
        self._incarnation.admitted()
        self._protocol.admit_itself()
        return True

    @property
    def is_caught_up(self) -> bool:
        """Whether this node holds all that the change of members needs it to hold; see `epochs.is_ready`."""
        record, handover = self._members.roster.record, self._protocol.handover
        if self._protocol.learning is not None or record.change is None:
            return False
        if not record.change.is_joint:
            return True
        if handover is None:
            return False
        own = self._members.roster.own
        teachers, _, everyone = self._members.teachers
        others = teachers - {self._incarnation.node}
        learners = {node for node in others if not self._protocol.is_member(node)}
        needed = len(record.members) // 2 + 1 - (own in record.members)
        if not handover.is_done(others, needed=needed, everyone=everyone, learners=learners):
            return False
        leaving = self._members.node_at(record.change.leaves)
        return not record.change.hands_over or own == record.change.leaves or (bool(leaving) and handover.holds(leaving))

    def fall_back(self, peer: bytes) -> None:
        """Become a learner, because a peer knows that this directory was set back."""
        learning = self._protocol.learning
        assert learning is not None, "the protocol has made it a learner"
        if not self._incarnation.fence:
            log(events.SET_BACK, peer=self._members.name_of(peer))
        self._write, self._set_back_by = None, peer
        rows = self._incarnation.set_back(self._members.name_of(peer), learning.owed)
        with suppress(ShoalError):  # A later tick tries again; after a restart peers report it again.
            self._commit.write(rows | self._forget_votes())
            self._set_back_by = None

    def keep_record(self) -> None:
        """Write the record of a set-back, if that failed before."""
        if self._set_back_by is not None:
            self.fall_back(self._set_back_by)


_LOST = keys.meta("lost/")  # node₁₆ → the address where another directory has taken its place.
_LOST_MAX = 64
_ROWS_MAX = 4096  # In one write.


class Marking:
    """Reads and writes the marks. `now` is the time of the start, in seconds; the first write is due then."""

    def __init__(self, storage: Storage, commit: GroupCommit, *, members: Members, config: Config, now: float) -> None:
        self._storage = storage
        self._commit = commit
        self._members = members
        self._interval_s = config.mark_interval_s
        self._due_s = now
        self._addresses: dict[bytes, str] = {}
        self._lost: dict[bytes, str] = {}  # The latest last.
        self._written_lost: dict[bytes, str] = {}

    def load(self) -> dict[bytes, dict[int, VersionVector]]:
        """The stored marks, by node and partition."""
        self._addresses = {node: found.decode(errors="replace") for node, found in keys.addresses(self._storage)}
        for key, address in self._storage.scan(_LOST, successor(_LOST)):
            self._lost[key[len(_LOST) :]] = self._written_lost[key[len(_LOST) :]] = address.decode(errors="replace")
        return keys.vectors(self._storage)

    def node_at(self, address: str) -> bytes:
        """The id of the node that was last reached at an address, also before this start; empty if there is none."""
        return next((node for node, there in sorted(self._addresses.items()) if there == address), b"")

    @property
    def lost(self) -> dict[bytes, str]:
        """The directories whose place another one took, and which no member forgot yet, with their addresses."""
        present, record = self._members.nodes, self._members.roster.record
        return {
            node: address
            for node, address in self._lost.items()
            if node not in present and record.removal_of(node) is None and address in record.members
        }

    def lose(self, node: bytes, address: str) -> None:
        """Another directory has taken the place of `node`."""
        self._lost.pop(node, None)
        self._lost[node] = address

    def record(self, protocol: Replication, now: float) -> None:
        """Write the changes, if the interval is over.

        Raises:
            ShoalError: storage failed; a later call tries again.
        """
        if now < self._due_s:
            return
        self._due_s = now + self._interval_s
        reached = {member.resident: member.address for member in self._members.all if member.resident}
        for node in sorted(self._addresses.keys() - reached.keys()):  # Always in the same order.
            if self._addresses[node] not in self._members.addresses or self._addresses[node] in reached.values():
                self._drop(protocol, node)  # It is no longer a member, or another directory has replaced it.
        for node, address in (self._addresses | reached).items():
            self._write(protocol, node, address)
        if self._lost or self._written_lost:
            self._write_lost()

    def _write(self, protocol: Replication, node: bytes, address: str) -> None:
        unwritten = protocol.mark(node).unwritten
        places = list(islice(unwritten, _ROWS_MAX))
        rows: dict[bytes, bytes | None] = {}
        for partition, origin in places:
            sequence = unwritten[partition, origin]
            rows[keys.entry(node, partition, origin)] = None if sequence is None else sequence.to_bytes(8, "big")
        if self._addresses.get(node) != address:
            rows[keys.address(node)] = address.encode()
        if rows:
            self._commit.write(rows)
            self._addresses[node] = address
            for place in places:
                del unwritten[place]

    def _drop(self, protocol: Replication, node: bytes) -> None:
        self._commit.write({keys.address(node): None}, [keys.entries(node)])
        self.lose(node, self._addresses.pop(node))
        protocol.forget(node)

    def _write_lost(self) -> None:
        """Write which directories were lost, if that has changed."""
        self._lost = dict(list(self.lost.items())[-_LOST_MAX:])
        if self._lost != self._written_lost:
            rows: dict[bytes, bytes | None] = dict.fromkeys(_LOST + node for node in self._written_lost)
            self._commit.write(rows | {_LOST + node: address.encode() for node, address in self._lost.items()})
            self._written_lost = dict(self._lost)


class Resets:
    """At most one entry for each peer and partition. `vector_of` is what this node has applied; `named` names a peer."""

    def __init__(self, *, vector_of: Callable[[int], VersionVector], named: Callable[[bytes], str]) -> None:
        self._vector_of = vector_of
        self._named = named
        self._due: dict[tuple[int, bytes], Reset] = {}

    def note(self, reset: Reset) -> None:
        """A peer says that what this node lacks has left its log. The first time it is logged."""
        place = reset.partition, reset.peer
        if place not in self._due:
            log(events.LEFT_BEHIND, reason=self._text(reset))
        self._due[place] = reset

    def forget(self, peer: bytes) -> None:
        """Another directory is at this peer's address now."""
        self._due = {place: reset for place, reset in self._due.items() if reset.peer != peer}

    @property
    def told(self) -> list[str]:
        """The partitions that wait for a snapshot, for people."""
        self._due = {
            place: reset for place, reset in self._due.items() if not self._vector_of(reset.partition).dominates(reset.base)
        }
        return [self._text(reset) for _, reset in sorted(self._due.items())]

    def _text(self, reset: Reset) -> str:
        lacking = sum(map(len, reset.base.missing(self._vector_of(reset.partition)).values()))
        return (
            f"partition {reset.partition}: this node lacks {lacking:,} operations that have left the log of "
            f"{self._named(reset.peer)}, and needs a snapshot of the partition"
        )
