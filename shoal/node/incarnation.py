"""One incarnation of a data directory: the id of this node, and the origin under which it writes.

Laws:
- The node's id is made once per directory. If the storage's identity differs from the
  recorded one, the directory was copied or restored: it is another node and takes a
  new id. The origin is made once per incarnation, at its first write, and is recorded
  in the batch that uses it first.
- A directory among peers is a learner until `admission` is durable. So is a copy, and a directory that was set
  back, as a peer reports. These two issue nothing until then: the data that they would build on may be erased everywhere else.
- A directory that began empty among peers is *unproven* until then: nothing tells it from one that was wiped, or that is no
  member. It shows nothing, for it would show that there is nothing; and it issues nothing, for that would build on nothing.
- A stop that flushed everything sets the clean-stop marker; the first write after it
  removes the marker. The marker closes the old origin. The next incarnation never writes under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shoal.cluster.operation import Tip
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin, VersionVector, origin_of
from shoal.crdt.rows import successor
from shoal.errors import CatchingUp, NotAMember, StoreCorrupt
from shoal.node.transaction import Transaction
from shoal.storage import keys
from shoal.storage.interface import Storage

_NODE = keys.meta("node")
_ORIGIN = keys.meta("origin")
_CLEAN = keys.meta("clean")
_PAST = keys.meta("past")  # Of older versions: all past origins in one row.
_OVER = keys.meta("over/")  # Followed by the origin: a row for each that is over; `_COPY` if it came with a copy.
_IDENTITY = keys.meta("identity")
_ORIGINALS = keys.meta("originals")  # The ids of the directories of which this one is a copy, the latest last.
_MEMBER = keys.meta("member")
_RESTORED = keys.meta("restored")
_UNPROVEN = keys.meta("unproven")  # This directory began empty among peers, and was never admitted.
_ONCE, _ONCE_END = keys.meta("once/"), keys.meta("once0")  # "0" follows "/".
_COPY = b"\x01"  # Instead of a peer's address.
_AMONG_OTHERS = b"\x02"  # Of the row of the admission: the cluster had other members.
_TAIL_CHECKED = 16
_ORIGINALS_MAX = 64


class Incarnation:
    """The identity of one opening, and whether it may issue. It writes nothing; the caller writes the rows that it returns."""

    def __init__(self, storage: Storage, entropy: Callable[[int], bytes]) -> None:
        """Read the identity from `storage`; `entropy` returns so many random bytes.

        Raises:
            StoreCorrupt: the last incarnation did not stop cleanly, and its log has a hole.
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
        """Among peers: whether it may lack operations that others rely on it to hold."""
        restored = storage.get(_RESTORED)
        self._restored = self.copied or restored is not None
        self.told_by = "" if restored in (None, _COPY) else restored.decode(errors="replace")
        """The address of the peer that knows that this directory was set back; empty if none does."""
        self.owed = _owed(storage)
        """The operations that this directory held before it was set back, by partition, as its peers reported."""
        self._issues = True
        self.unproven = False
        """Whether this directory began empty among peers, and was never admitted: it may lack all that the cluster holds."""
        self._began_empty = node is None or storage.get(_UNPROVEN) is not None or not _holds_anything(storage)
        self.barred = ""
        """Why the cluster's list of members forbids this node to write, for people; empty if it does not."""
        self.outside = False
        """Whether that is because it is no member, so that it does not read for others either."""
        self.node = entropy(ORIGIN_BYTES) if node is None or self.copied else node
        self.originals = _originals(storage, node if self.copied else None)
        """The ids of the directories of which this one is a copy, the latest last; at most 64."""
        self.clean = self.created or storage.get(_CLEAN) is not None
        self.previous = storage.get(_ORIGIN)
        self._gave_up = False  # Whether the past origins are another directory's now.
        self._begun: list[Callable[[], None]] = []
        if not self.clean and self.previous is not None:
            _check_tail(storage, Origin(self.previous))

    @property
    def current(self) -> Origin | None:
        """The origin of this incarnation; None until the first write."""
        return self._origin

    @property
    def fence(self) -> str:
        """The reason why this node writes nothing now, for people; empty if it writes."""
        if self._issues:
            return ""
        if self.told_by:
            return (
                f"this node's directory was set back: {self.told_by} knows that it once held more. The node writes nothing "
                "until it has fetched that and everything that the others hold, because they may have erased what it still has"
            )
        return (
            "this node's directory is a copy, and the node writes nothing until it has fetched everything that the others "
            "hold, because they may have erased what the copy has"
        )

    def bar(self, why: str, *, outside: bool = False) -> None:
        """Write nothing from now on, for this reason; empty: nothing forbids it any more. `outside`: it is no member."""
        self.barred, self.outside = why, outside

    def check(self) -> None:
        """Whether this node may write at all.

        Raises:
            NotAMember: it is not added yet, joins or leaves the cluster, or was removed.
            CatchingUp: it began with an empty directory, and does not know yet what the cluster holds.
        """
        if self.barred:
            raise NotAMember(f"this node {self.verb} nothing: {self.barred}. Nothing was written. Ask another node.")
        if self.unproven:
            why = self.fence or "its directory began empty, and it does not know yet what the cluster holds"
            raise CatchingUp(f"this node serves nothing yet: {why}. Nothing was written. Ask another node, or try again later.")

    @property
    def verb(self) -> str:
        """For people: what a node that is barred does not do."""
        return "serves" if self.outside else "writes"

    def is_over(self, origin: Origin) -> bool:
        """Whether an earlier incarnation of this directory wrote under that origin."""
        if self._gave_up or origin == self._origin:
            return False
        if origin == self.previous or self._storage.get(_OVER + origin) is not None:
            return True
        packed = self._storage.get(_PAST) or b""
        return any(packed.startswith(origin, start) for start in range(0, len(packed), ORIGIN_BYTES))

    def past_origins(self) -> list[Origin]:
        """The origins of this directory's earlier openings that it has not retired everywhere yet.

        Those that came with a copy of another directory are none of them: the original may still run.
        """
        rows = self._storage.scan(_OVER, successor(_OVER))
        return [] if self._gave_up else [Origin(key[len(_OVER) :]) for key, value in rows if value != _COPY]

    @property
    def was_member(self) -> bool:
        """Whether this directory ever belonged to a cluster, whose other nodes may lack what it holds."""
        return keys.is_any(self._storage) or self._storage.get(_MEMBER) is not None

    @property
    def had_fellows(self) -> bool:
        """Whether this directory was ever a member of a cluster that had others."""
        return had_fellows(self._storage)

    @staticmethod
    def without(origins: Iterable[Origin]) -> dict[bytes, bytes | None]:
        """The rows that forget past origins which are retired everywhere."""
        return {_OVER + origin: None for origin in sorted(origins)}

    def when_begun(self, then: Callable[[], None]) -> None:
        """Call `then` once this incarnation has written for the first time."""
        self._begun.append(then)

    def origin(self, transaction: Transaction) -> Origin:
        """The origin to write under; the first `transaction` records it.

        Raises:
            CatchingUp: this directory is new, a copy or was set back, and has not yet fetched what its peers hold.
            NotAMember: this node joins or leaves the cluster, or was removed.
        """
        self.check()
        if not self._issues:
            raise CatchingUp(f"{self.fence}. Nothing was written. Ask another node, or try again later.")
        if self._origin is not None:
            return self._origin
        origin = origin_of(self.node, self._entropy(ORIGIN_BYTES))
        self._identify(transaction)
        transaction.put(_ORIGIN, origin)
        if self.previous is not None and not self._gave_up:
            if self.copied:
                for key, _ in self._storage.scan(_OVER, successor(_OVER)):
                    transaction.put(key, _COPY)
            transaction.put(_OVER + self.previous, _COPY if self.copied else b"")
        transaction.delete(_CLEAN)
        transaction.when_written(lambda: self._take(origin))
        return origin

    def introduction(self, *, has_others: bool = True) -> dict[bytes, bytes | None]:
        """The rows that make the id of a new directory durable, before anything else is written; none if it is already.

        Peers count a node by its id, so a crash must not change the id. A copy gives up the origins of its original:
        the original may still run, and spend what it has rights to. `has_others`: whether the cluster has other members.
        """
        self.unproven = has_others and self.learner and self._began_empty
        unproven: dict[bytes, bytes | None] = {_UNPROVEN: b"\x01"} if self.unproven else {}
        if self.created:
            return {**self._identified(), **unproven, _CLEAN: b"\x01"}
        self._issues = not self._restored
        if self.copied:
            self._gave_up = True
            over = dict.fromkeys(key for key, _ in self._storage.scan(_OVER, successor(_OVER)))
            return {**self._identified(), **over, **unproven, _MEMBER: None, _PAST: None, _ORIGIN: None, _RESTORED: _COPY}
        return unproven

    def vouching(self) -> dict[bytes, bytes | None]:
        """The rows that make the id of a new directory durable with its first votes; none if it has written. Votes name it."""
        return {**self._identified(), _CLEAN: b"\x01"} if self.created and not self._settled else {}

    def set_back(self, told_by: str, owed: Mapping[int, VersionVector]) -> dict[bytes, bytes | None]:
        """Become a learner that issues nothing: the peer at `told_by` knows that this directory once held what is `owed`.

        Returns the rows that keep it a learner after a restart.
        """
        self.learner, self._issues, self.told_by = True, False, told_by
        rows = {_ONCE + partition.to_bytes(2, "big"): vector.pack() for partition, vector in owed.items()}
        return {**self._identified(), _MEMBER: None, _RESTORED: told_by.encode(), **rows}

    def admission(self, *, has_others: bool) -> tuple[dict[bytes, bytes | None], list[tuple[bytes, bytes]]]:
        """The rows, and the ranges to delete, that make this directory a member, once it holds all that it must."""
        member = _AMONG_OTHERS if has_others else b"\x01"
        return {**self._identified(), _MEMBER: member, _RESTORED: None, _UNPROVEN: None}, [(_ONCE, _ONCE_END)]

    def admitted(self) -> None:
        """Become a member in memory, now that `admission` is durable."""
        self.learner, self.unproven, self._issues, self.told_by = False, False, True, ""

    def _identified(self) -> dict[bytes, bytes | None]:
        originals: dict[bytes, bytes | None] = {_ORIGINALS: b"".join(self.originals)} if self.copied else {}
        return {_NODE: self.node, _IDENTITY: self._identity, **originals}

    def _identify(self, transaction: Transaction) -> None:
        for row, value in self._identified().items():
            assert value is not None
            transaction.put(row, value)
        if self.copied and self.learner:
            transaction.delete(_MEMBER)  # That was the original's.
            transaction.put(_RESTORED, _COPY)  # Among peers it counts as a copy, even if it first wrote while it was alone.

    def settle(self, transaction: Transaction) -> None:
        """Record the node's id with the first write of another node's operations, which needs no origin."""
        if not self._settled:
            self._identify(transaction)
            transaction.delete(_CLEAN)
            transaction.when_written(self._settle)

    def _settle(self) -> None:
        self._settled = True

    def _take(self, origin: Origin) -> None:
        self._origin, self._settled = origin, True
        for then in self._begun:
            then()

    def closing(self) -> dict[bytes, bytes | None]:
        """The rows of the clean-stop marker; none if this incarnation wrote nothing."""
        return {_CLEAN: b"\x01"} if self._settled else {}


def had_fellows(storage: Storage) -> bool:
    """Whether this directory was ever a member of a cluster that had others."""
    return storage.get(_MEMBER) == _AMONG_OTHERS or keys.is_any(storage)


def _holds_anything(storage: Storage) -> bool:
    return any(next(iter(storage.scan(table, successor(table), limit=1)), None) for table in (keys.VECTOR, keys.OBJECT))


def _originals(storage: Storage, copied: bytes | None) -> tuple[bytes, ...]:
    packed = (storage.get(_ORIGINALS) or b"") + (copied or b"")
    found = [packed[start : start + ORIGIN_BYTES] for start in range(0, len(packed), ORIGIN_BYTES)]
    return tuple(found[-_ORIGINALS_MAX:])


def _owed(storage: Storage) -> dict[int, VersionVector]:
    found: dict[int, VersionVector] = {}
    for key, packed in storage.scan(_ONCE, _ONCE_END):
        number = int.from_bytes(key[len(_ONCE) :], "big")
        try:
            found[number] = VersionVector.unpack(packed)
        except ValueError:
            raise StoreCorrupt(
                f"the row that says what this directory held of partition {number} before it was set back is damaged. Nothing "
                "was changed. Move the directory aside, and start with an empty one: the peers have the data."
            ) from None
    return found


def _check_tail(storage: Storage, origin: Origin) -> None:
    """Check after a crash that the log holds the last operations that the vectors claim of the last origin, from its base."""
    for key, packed in storage.scan(keys.VECTOR, successor(keys.VECTOR)):
        if key[3:] != origin:
            continue
        partition, sequence = int.from_bytes(key[1:3], "big"), Tip.unpack(packed).sequence
        based = storage.get(keys.base(partition, origin))
        base = 0 if based is None else Tip.unpack(based).sequence
        for missing in range(max(base + 1, sequence - _TAIL_CHECKED), sequence + 1):
            if storage.get(keys.log(partition, Dot(origin, missing))) is None:
                raise StoreCorrupt(
                    f"operation {missing} of origin {origin.hex()} in partition {partition} is missing from the log, though "
                    f"{sequence} are recorded. Nothing was changed. Run `shoal verify` on the directory; "
                    "move it aside and restore a backup, or rebuild it from peers."
                )


def set_back_by(rows: Mapping[bytes, bytes | None]) -> str:
    """The address of the peer that, as a write of these rows says, told this node that its directory was set back; or empty."""
    told_by = rows.get(_RESTORED)
    return "" if told_by is None or told_by == _COPY else told_by.decode(errors="replace")
