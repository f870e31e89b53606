"""Keeps the marks of the other owners (`shoal.cluster.marks`) in this node's store (`shoal.storage.marks`).

Laws:
- Changes of the marks are written at most once per interval, in the same group commit as other writes.
- There is one mark for each configured address: that of the directory that was last reached there.
- A directory whose place another one took is remembered without its mark, until it is forgotten by the members: the latest.

A crash loses the changes of the last interval. A mark may then say too little, but never too much: a start leaves out what is
retired here (`shoal.cluster.peer_state`).
"""

from __future__ import annotations

from itertools import islice

from shoal.cluster.replication import Replication
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import successor
from shoal.node.peers.members import Members
from shoal.storage import keys, marks
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

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
        self._addresses = {node: found.decode(errors="replace") for node, found in marks.addresses(self._storage)}
        for key, address in self._storage.scan(_LOST, successor(_LOST)):
            self._lost[key[len(_LOST) :]] = self._written_lost[key[len(_LOST) :]] = address.decode(errors="replace")
        return marks.vectors(self._storage)

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
            rows[marks.entry(node, partition, origin)] = None if sequence is None else sequence.to_bytes(8, "big")
        if self._addresses.get(node) != address:
            rows[marks.address(node)] = address.encode()
        if rows:
            self._commit.write(rows)
            self._addresses[node] = address
            for place in places:
                del unwritten[place]

    def _drop(self, protocol: Replication, node: bytes) -> None:
        self._commit.write({marks.address(node): None}, [marks.entries(node)])
        self.lose(node, self._addresses.pop(node))
        protocol.forget(node)

    def _write_lost(self) -> None:
        """Write which directories were lost, if that has changed."""
        self._lost = dict(list(self.lost.items())[-_LOST_MAX:])
        if self._lost != self._written_lost:
            rows: dict[bytes, bytes | None] = dict.fromkeys(_LOST + node for node in self._written_lost)
            self._commit.write(rows | {_LOST + node: address.encode() for node, address in self._lost.items()})
            self._written_lost = dict(self._lost)
