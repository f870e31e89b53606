"""Whether a node serves, and says that it is ready: only on positive knowledge that it may.

Laws:
- A node that may lack all that its cluster holds, or that is no member, serves nothing but questions about itself: it would
  answer that there is nothing, and write beside what there is.
- One that waits for its peers tells what it waits for, and what its operator can do.
- A member that reaches nobody serves: its directory holds the proof that it is one (`shoal.node.incarnation`).
"""

from __future__ import annotations

from typing import Literal

from shoal.errors import CatchingUp
from shoal.node.incarnation import Incarnation
from shoal.node.replicas import Replicas
from shoal.storage.commit import GroupCommit

_REFILLING = "it is fetching the data that its peers hold"


class Readiness:
    """Of one node, as its directory, its peers and its disk have it."""

    def __init__(self, incarnation: Incarnation, commit: GroupCommit, *, replicas: Replicas) -> None:
        self._incarnation = incarnation
        self._commit = commit
        self._replicas = replicas

    @property
    def serves(self) -> bool:
        """Whether it answers more than questions about itself."""
        return not (self._incarnation.outside or self._incarnation.unproven)

    def check(self, *, stale: bool) -> None:
        """Check whether this node may show what it holds, and build on it. `stale`: the caller reads what is here, be it older.

        Raises:
            CatchingUp: it began with an empty directory, and does not hold yet what its cluster holds.
            NotAMember: it is no member of its cluster.
        """
        if stale or self.serves:
            return
        if self._incarnation.outside:
            self._incarnation.check()
        raise CatchingUp(
            f"this node serves nothing yet: {self._refilling}. Nothing was written. Ask another node, or try again later.",
            state="refilling",
        )

    def admit(self) -> None:
        """Check whether this node may accept a new session. One that met nobody yet, or is no member, tells each request that.

        Raises:
            CatchingUp: the node is still fetching the data that its peers hold.
        """
        if self._replicas.refilling and not self._incarnation.outside:
            raise CatchingUp(
                f"the node accepts no sessions: {self._refilling}. Nothing was written. Ask another node, or try again later."
            )

    @property
    def told(self) -> tuple[Literal["ready", "read-only", "refilling"], str]:
        """The state of the node, and the reason for people: why it is not ready, or counts in no quorum; else empty."""
        incarnation, replicas = self._incarnation, self._replicas
        barred = incarnation.barred and f"this node {incarnation.verb} nothing: {incarnation.barred}"
        if failed := self._commit.failed or replicas.clock_wrong or barred:
            return "read-only", failed
        learning = "; ".join(replicas.learning)
        learns = f"learning, so it counts in no quorum: {learning}" if learning else ""
        if incarnation.fence or replicas.refilling or incarnation.unproven:
            return "refilling", f"{self._refilling}; {learns}"
        return "ready", learns

    @property
    def _refilling(self) -> str:
        return self._incarnation.fence or self._replicas.awaited or _REFILLING
