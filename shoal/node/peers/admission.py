"""Whether this node's directory counts among its peers, and the records of that.

Laws:
- A learner becomes an owner once it holds all that it must and its admission is
  durable; only then does it say so. A directory that began empty serves from then on: a cluster is founded by the word
  of all its members that they hold what this one holds, which is nothing, and a wiped member comes back by a majority's.
- A node of which a member says that it is none is not admitted.
- While a change of members is joint, a node says that it has caught up once it holds all that a majority of the old list,
  itself included, and a leaving node that hands over reported in this epoch.
- If a peer reports that an owner's directory was set back, the owner is a learner at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from shoal.cluster.replication import Replication
from shoal.errors import ShoalError
from shoal.node.incarnation import Incarnation
from shoal.node.peers.members import Members
from shoal.storage.commit import GroupCommit

_log = logging.getLogger("shoal.node")


class Admission:
    """`forget_votes` returns the rows by which a directory that was set back gives up its votes."""

    def __init__(
        self,
        protocol: Replication,
        commit: GroupCommit,
        *,
        members: Members,
        incarnation: Incarnation,
        forget_votes: Callable[[], dict[bytes, bytes | None]],
    ) -> None:
        self._protocol = protocol
        self._commit = commit
        self._members = members
        self._incarnation = incarnation
        self._forget_votes = forget_votes
        self._write: int | None = None  # The write that makes this learner an owner.
        self._set_back_by: bytes | None = None  # The peer that reported a set-back, until that is recorded.

    def seek(self) -> None:
        """Write the admission, if this is a learner that holds all that it must."""
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
            _log.warning("this node's directory was set back: %s knows that it once held more", self._members.name_of(peer))
        self._write, self._set_back_by = None, peer
        rows = self._incarnation.set_back(self._members.name_of(peer), learning.owed)
        with suppress(ShoalError):  # A later tick tries again; after a restart peers report it again.
            self._commit.write(rows | self._forget_votes())
            self._set_back_by = None

    def keep_record(self) -> None:
        """Write the record of a set-back, if that failed before."""
        if self._set_back_by is not None:
            self.fall_back(self._set_back_by)
