"""One incarnation of a data directory: who this node is, and under which origin it writes.

Laws:
- The node's id is made once per directory. A directory that finds itself copied or
  restored (its storage has another identity than it recorded) is another node: it
  takes a new id. The origin is made once per incarnation, at its first write, and is
  recorded in the batch that uses it first.
- A directory among peers is a learner until `admission` is durable; so is a copy of it, and one that was set
  back, as a peer says. These two issue nothing until then: what they would build on may be gone everywhere else.
- The clean-stop marker is set by a stop that flushed everything, and removed by
  the first write after it. It closes the old origin; it does not lend it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.cluster.operation import Tip
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import CatchingUp, StoreCorrupt
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage

_NODE = keys.meta("node")
_ORIGIN = keys.meta("origin")
_CLEAN = keys.meta("clean")
_PAST = keys.meta("past")  # Of older versions: all past origins in one row.
_OVER = keys.meta("over/")  # And then the origin: a row for each that is over.
_IDENTITY = keys.meta("identity")
_MEMBER = keys.meta("member")
_RESTORED = keys.meta("restored")
_ONCE, _ONCE_END = keys.meta("once/"), keys.meta("once0")  # "0" follows "/".
_COPY = b"\x01"  # Instead of a peer's address.
_TAIL_CHECKED = 16


class Incarnation:
    def __init__(self, storage: Storage, entropy: Callable[[int], bytes]) -> None:
        """
        Raises:
            StoreCorrupt: the last incarnation was cut off, and its log has a hole.
        """
        self._storage = storage
        self._entropy = entropy
        self._origin: Origin | None = None
        self._settled = False  # Whether this incarnation has written.
        node = storage.get(_NODE)
        self.created = node is None
        self._identity = storage.identity
        self.copied = node is not None and storage.get(_IDENTITY) not in (None, self._identity)
        """Whether this directory is a copy, or was restored from one."""
        self.learner = self.copied or storage.get(_MEMBER) is None
        """Among peers: whether it may have forgotten, or never held, what others rely on."""
        restored = storage.get(_RESTORED)
        self._restored = self.copied or restored is not None
        self.told_by = "" if restored in (None, _COPY) else restored.decode()
        """The peer that knows that this directory was set back; empty if none does."""
        self.owed = _owed(storage)
        """What this directory held before it was set back, by partition, as its peers told."""
        self._issues = True
        self.node = entropy(ORIGIN_BYTES) if node is None or self.copied else node
        self.clean = self.created or storage.get(_CLEAN) is not None
        self.previous = storage.get(_ORIGIN)
        self._gave_up = False  # Whether the past origins are another directory's now.
        if not self.clean and self.previous is not None:
            _check_tail(storage, Origin(self.previous))

    @property
    def current(self) -> Origin | None:
        """None until the first write."""
        return self._origin

    @property
    def fence(self) -> str:
        """Why this node writes nothing now, for people; empty if it does."""
        if self._issues:
            return ""
        if self.told_by:
            return (
                f"this node's directory was set back: {self.told_by} knows that it once held more. The node writes nothing "
                "until it has fetched that and what the others hold, because what it still has may be gone there"
            )
        return (
            "this node's directory is a copy, and the node writes nothing until it has fetched what the others hold: what "
            "the copy has may be gone there"
        )

    def is_over(self, origin: Origin) -> bool:
        """Whether this directory was written under that origin, in an incarnation before this one."""
        if self._gave_up or origin == self._origin:
            return False
        if origin == self.previous or self._storage.get(_OVER + origin) is not None:
            return True
        packed = self._storage.get(_PAST) or b""
        return any(packed.startswith(origin, start) for start in range(0, len(packed), ORIGIN_BYTES))

    def origin(self, transaction: Transaction) -> Origin:
        """The origin to write under; the first `transaction` records it.

        Raises:
            CatchingUp: this directory is a copy or was set back, and has still to fetch what its peers hold.
        """
        if not self._issues:
            raise CatchingUp(f"{self.fence}. Nothing was written. Ask another node, or try again later.")
        if self._origin is not None:
            return self._origin
        origin = Origin(self._entropy(ORIGIN_BYTES))
        self._identify(transaction)
        transaction.put(_ORIGIN, origin)
        if self.previous is not None and not self._gave_up:
            transaction.put(_OVER + self.previous, b"")
        transaction.delete(_CLEAN)
        transaction.when_written(lambda: self._take(origin))
        return origin

    def introduction(self) -> dict[bytes, bytes | None]:
        """The rows that make the id of a new directory last, before anything else is written; none if it does already.

        Peers count a node by its id: it must not be another one after a crash. A copy gives up the origins of its
        original, which may be alive and spend what it has rights to.
        """
        if self.created:
            return {**self._identified(), _CLEAN: b"\x01"}
        self._issues = not self._restored
        if self.copied:
            self._gave_up = True
            over = dict.fromkeys(key for key, _ in self._storage.scan(_OVER, successor(_OVER)))
            return {**self._identified(), **over, _MEMBER: None, _PAST: None, _ORIGIN: None, _RESTORED: _COPY}
        return {}

    def set_back(self, told_by: str, owed: Mapping[int, VersionVector]) -> dict[bytes, bytes | None]:
        """The peer at `told_by` knows that this directory once held what is `owed`.

        It is a learner that issues nothing from now on. Returns the rows that keep it one after a restart.
        """
        self.learner, self._issues, self.told_by = True, False, told_by
        rows = {_ONCE + partition.to_bytes(2, "big"): vector.pack() for partition, vector in owed.items()}
        return {**self._identified(), _MEMBER: None, _RESTORED: told_by.encode(), **rows}

    def admission(self) -> tuple[dict[bytes, bytes | None], list[tuple[bytes, bytes]]]:
        """The rows, and the ranges to delete, that make this directory a member, once it holds all that it must."""
        return {**self._identified(), _MEMBER: b"\x01", _RESTORED: None}, [(_ONCE, _ONCE_END)]

    def admitted(self) -> None:
        """`admission` is durable."""
        self.learner, self._issues, self.told_by = False, True, ""

    def _identified(self) -> dict[bytes, bytes | None]:
        return {_NODE: self.node, _IDENTITY: self._identity}

    def _identify(self, transaction: Transaction) -> None:
        transaction.put(_NODE, self.node)
        transaction.put(_IDENTITY, self._identity)
        if self.copied and self.learner:
            transaction.delete(_MEMBER)  # That was the original's.
            transaction.put(_RESTORED, _COPY)  # It holds among peers, also if it first wrote while it was alone.

    def settle(self, transaction: Transaction) -> None:
        """Record who this is with the first write that another node's operations make: it needs no origin."""
        if not self._settled:
            self._identify(transaction)
            transaction.delete(_CLEAN)
            transaction.when_written(self._settle)

    def _settle(self) -> None:
        self._settled = True

    def _take(self, origin: Origin) -> None:
        self._origin, self._settled = origin, True

    def closing(self) -> dict[bytes, bytes | None]:
        """The rows of the clean-stop marker; none if nothing was written."""
        return {_CLEAN: b"\x01"} if self._settled else {}


def _owed(storage: Storage) -> dict[int, VersionVector]:
    return {
        int.from_bytes(key[len(_ONCE) :], "big"): VersionVector.unpack(packed) for key, packed in storage.scan(_ONCE, _ONCE_END)
    }


def _check_tail(storage: Storage, origin: Origin) -> None:
    """After a crash: what the vectors claim of the last origin must be in the log."""
    for key, packed in storage.scan(keys.VECTOR, successor(keys.VECTOR)):
        if key[3:] != origin:
            continue
        partition, sequence = int.from_bytes(key[1:3], "big"), Tip.unpack(packed).sequence
        for missing in range(max(1, sequence - _TAIL_CHECKED), sequence + 1):
            if storage.get(keys.log(partition, Dot(origin, missing))) is None:
                raise StoreCorrupt(
                    f"operation {missing} of origin {origin.hex()} in partition {partition} is missing from the log, though "
                    f"{sequence} are recorded. Nothing was changed. Run `shoal verify` on the directory; "
                    "move it aside and restore a backup, or rebuild it from peers."
                )
