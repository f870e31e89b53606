"""Statements: signing them, checking their signatures, writing them as files; and one log against what they say of it.

A statement lists the heads of all logs, and is no Merkle root: an auditor who holds only an old statement needs the list
again to check a root. The chains are walked, which proves the content of each operation as well.

Laws:
- A signature covers everything that a statement says, and the hash of the statement before it. So the statements of one
  node form a chain: none of them can be taken out, and two with the same number convict the node, or whoever has its key.
- Roots of the state are signed with the rest. A statement without roots is one of an older version, under a domain of its own,
  so that roots can neither be taken from a statement nor be added to one.
- The key that a statement names proves nothing by itself: who checks compares it with one that is known.

One log against what statements say of it.

Laws:
- A log is read from its base, or from its first operation, to the last one that a statement names. Each operation must
  follow from the chain hash before it, so that whatever a statement covers and the log still holds is proved, byte by byte.
- Operations that left the log cannot be proved by it, and are counted: never silence. An archive that was exported in time
  proves it.
- A root of the rows is compared with one at the same vector, which leaves out the same objects, and with nothing else.
- The clock of an origin only goes forward, and what a node wrote after its own statement is not older than that statement.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from shoal.cluster import operation
from shoal.crdt.dot import Dot, Origin
from shoal.errors import InvalidInput, InvalidValue
from shoal.protocol.requests import LoggedOperation, LogHead, LogPage, Statement, StateRoot
from shoal.raising import needed
from shoal.records import NamedTuple

THREADS = "statements/"
"""Before the id of a node in hex: the thread of the space `RESERVED` whose journal is the statements that it keeps."""

SEED_BYTES = 32
_DOMAIN = b"shoal statement 2\x00"  # Nothing else that is signed begins with this,
_DOMAIN_WITHOUT_ROOTS = b"shoal statement 1\x00"  # or with this.
_encoder = msgspec.msgpack.Encoder()


def public_key(seed: bytes) -> bytes:
    """The public key, 32 bytes, that belongs to a private one."""
    with needed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key: bytes = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return key


def signed(statement: Statement, seed: bytes) -> Statement:
    """The statement with its key and signature."""
    with needed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(seed)
    return msgspec.structs.replace(
        statement, key=private.public_key().public_bytes_raw(), signature=private.sign(_message(statement))
    )


def is_signed(statement: Statement) -> bool:
    """Whether the signature is that of the statement's key."""
    with needed():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(statement.key).verify(statement.signature, _message(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(statement: Statement) -> bytes:
    """SHA-256 of a statement, by which the next one of its node names it."""
    return sha256(_message(statement) + statement.signature).digest()


def to_text(statement: Statement) -> str:
    """A statement as JSON in one line; bytes are hex digits, keys and signatures too."""
    return json.dumps(_hexed(msgspec.structs.asdict(statement)), separators=(",", ":"))


def from_text(text: str | bytes) -> Statement:
    """The statement in a text from `to_text`.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = json.loads(text)
        heads = [[each[0], _bytes(each[1]), each[2], each[3], _bytes(each[4])] for each in found["heads"]]
        fields = {name: _bytes(found[name]) for name in ("node", "previous", "key", "signature")}
        own = [_bytes(each) for each in found["own"]]
        packed = ["statement", fields["node"], found["number"], found["time_ms"], fields["previous"], own, heads]
        roots = found.get("roots") and [[each[0], *map(_bytes, each[1:4]), [*map(_bytes, each[4])]] for each in found["roots"]]
        return msgspec.convert([*packed, fields["key"], fields["signature"], roots], Statement)
    except (ValueError, TypeError, LookupError):  # msgspec's own errors are ValueErrors.
        raise InvalidInput("this is no statement: `shoal audit sign` writes one. Nothing was checked.") from None


def read(file: Path) -> Statement:
    """The statement in a file.

    Raises:
        InvalidInput: it cannot be read, or holds none.
    """
    try:
        return from_text(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}. Nothing was checked.") from None
    except InvalidInput:
        raise InvalidInput(f"{file} holds no statement: `shoal audit sign` writes one. Nothing was checked.") from None


def fingerprint(key: bytes) -> str:
    """A public key, for people: as `ssh-keygen -l` shows one."""
    return "SHA256:" + base64.b64encode(sha256(key).digest()).decode().rstrip("=")


def _message(statement: Statement) -> bytes:
    bare = msgspec.structs.replace(statement, key=b"", signature=b"")
    if bare.roots is not None:
        return _DOMAIN + _encoder.encode(bare)
    return _DOMAIN_WITHOUT_ROOTS + _encoder.encode([bare.__struct_config__.tag, *msgspec.structs.astuple(bare)[:-1]])


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError
    return bytes.fromhex(text)


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _hexed(each) for name, each in value.items()}
    if isinstance(value, msgspec.Struct):
        return [_hexed(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, list):
        return [_hexed(each) for each in value]
    return value


class Kind(Enum):
    """The kinds of faults."""

    FORGED = "forged"  # A statement's signature does not hold.
    KEY_CHANGED = "key-changed"  # Two statements of one node have different keys.
    FORKED = "forked"  # Two statements contradict each other: somebody shows different histories.
    UNLINKED = "unlinked"  # A statement does not name the one before it.
    REMOVED = "removed"  # Operations that a statement covers are not there any more.
    ALTERED = "altered"  # An operation is not the one that a statement covers.
    BACK_DATED = "back-dated"  # An operation claims to be older than one that came before it.
    ROWS_DIFFER = "rows-differ"  # The rows of a partition are not those that a statement covers, at the same operations.


class Finding(NamedTuple):
    """Something that is wrong, for people."""

    kind: Kind
    text: str


class LogName(NamedTuple):
    """Which log: of one origin in one partition."""

    partition: int
    origin: bytes

    def __str__(self) -> str:
        return f"partition {self.partition}, origin {self.origin.hex()}"


class StatedHead(NamedTuple):
    """The head that one statement names of one log."""

    head: LogHead
    node: bytes  # Whose statement it is; empty: no statement's, but the beginning of the node's own log.
    time_ms: int
    is_own: bool  # Whether this node writes the log.

    def __str__(self) -> str:
        if not self.node:
            return f"the beginning of the node's log, operation {self.head.sequence},"
        return f"the statement of node {self.node.hex()} on operation {self.head.sequence}"


class Walk:
    """Reads one log, page by page, and compares it with the heads that statements name."""

    def __init__(self, name: LogName, stated: Iterable[StatedHead], *, skew_ms: int) -> None:
        """`skew_ms`: by how much a node's clock may have been set back between a statement and an operation."""
        self.findings: list[Finding] = []
        self.proved = 0  # Claims.
        self.gone: list[StatedHead] = []  # Heads of what has left the log.
        self.operations = 0  # Read and proved.
        self._name = name
        self._skew_ms = skew_ms
        self._stated = sorted(stated, key=lambda named: named.head.sequence)
        self._left: list[StatedHead] | None = None  # Of those, the ones that are not decided yet; None: nothing was read.
        self._sequence, self._chain, self._hlc = 0, operation.CHAIN_START, 0
        self._written_ms = 0  # The greatest time of a statement that this log's own node has made by now.

    @property
    def after(self) -> int | None:
        """After which operation the next page begins; None: nothing is left to be read."""
        if self._left is None:
            return 0
        return self._sequence if self._left else None

    def take(self, page: LogPage) -> None:
        """Read the next page."""
        if self._left is None:
            self._left = list(self._stated)
        if page.base > self._sequence:
            self._begin(page)
        for entry in page.operations:
            if not self._left:
                return
            if entry.sequence <= self._sequence:
                continue
            if not self._follows(entry):
                self._left = []
                return
            self._decide(entry.sequence, entry.chain)
        if self._left and self._sequence >= page.tip:
            self._removed(page)
        elif self._left and not page.operations:
            self._find(Kind.REMOVED, f"operation {self._sequence + 1} of {page.tip} is missing from the log")
            self._left = []

    def _begin(self, page: LogPage) -> None:
        """Begin here: all that is before has left the log, perhaps since the page before."""
        assert self._left is not None
        self._sequence, self._chain = page.base, page.base_chain
        while self._left and self._left[0].head.sequence < page.base:
            self.gone.append(self._left.pop(0))
        self._decide(page.base, page.base_chain)

    def _follows(self, entry: LoggedOperation) -> bool:
        if entry.sequence != self._sequence + 1:
            self._find(Kind.REMOVED, f"operation {self._sequence + 1} is missing from the log, before {entry.sequence}")
            return False
        dot = Dot(Origin(self._name.origin), entry.sequence)
        if operation.chain(self._chain, self._name.partition, dot, entry.packed) != entry.chain:
            self._find(Kind.ALTERED, f"operation {entry.sequence} does not have the chain hash that the log names")
            return False
        try:
            body = operation.decode(entry.packed)
        except InvalidValue:
            self._find(Kind.ALTERED, f"operation {entry.sequence} cannot be read")
            return False
        if body.hlc <= self._hlc:
            self._find(Kind.BACK_DATED, f"operation {entry.sequence} is not later than the one before it")
        if self._written_ms and body.wall_ms < self._written_ms - self._skew_ms:
            late_s = (self._written_ms - body.wall_ms) / 1000
            text = (
                f"operation {entry.sequence} was written after a statement of its node, and claims to be {late_s:.0f} s older"
            )
            self._find(Kind.BACK_DATED, text)
        self._sequence, self._chain, self._hlc = entry.sequence, entry.chain, body.hlc
        self.operations += 1
        return True

    def _decide(self, sequence: int, chain: bytes) -> None:
        """The log has this chain hash there."""
        assert self._left is not None
        while self._left and self._left[0].head.sequence == sequence:
            named = self._left.pop(0)
            if named.head.chain == chain:
                self.proved += bool(named.node)
            else:
                self._find(Kind.ALTERED, f"{named} names another chain hash: an operation up to it was altered")
            if named.is_own:
                self._written_ms = max(self._written_ms, named.time_ms)

    def _removed(self, page: LogPage) -> None:
        assert self._left is not None
        if not page.tip and all(named.head.hlc <= page.forgotten_hlc for named in self._left):
            self.gone += self._left
            self._left = []
            return
        most = self._left[-1]
        held = f"the log ends at operation {page.tip}" if page.tip else "the log is not there"
        self._find(Kind.REMOVED, f"{held}, and {most} covers more")
        self._left = []

    def _find(self, kind: Kind, text: str) -> None:
        self.findings.append(Finding(kind, f"{self._name}: {text}"))


class StatedRoot(NamedTuple):
    """The root that one statement names of the rows of one partition."""

    root: StateRoot
    heads: list[LogHead]  # The operations that make them.
    node: bytes
    time_ms: int

    def __str__(self) -> str:
        return f"the statement of node {self.node.hex()} at {self.time_ms} on the rows of partition {self.root.partition}"

    def difference(self, other: StateRoot) -> str:
        """In what a root at the same vector, without the same objects, differs; empty: in nothing."""
        root = self.root
        assert (root.partition, root.vector, root.left) == (other.partition, other.vector, other.left)
        differing = [name for name in ("objects", "listed") if getattr(root, name) != getattr(other, name)]
        return " and ".join(
            {"objects": "the rows of its objects", "listed": "the list of its objects"}[each] for each in differing
        )

    def finding(self, difference: str, whose: str) -> Finding:
        """The rows are others."""
        return Finding(Kind.ROWS_DIFFER, f"partition {self.root.partition}: {difference} of {whose} are not those of {self}")


def roots_of(statements: Iterable[Statement]) -> dict[int, list[StatedRoot]]:
    """The roots that statements name, by partition, the newest first."""
    found: dict[int, list[StatedRoot]] = {}
    for statement in sorted(statements, key=lambda each: each.time_ms, reverse=True):
        heads: dict[int, list[LogHead]] = {}
        for head in statement.heads:
            heads.setdefault(head.partition, []).append(head)
        for root in statement.roots or ():
            named = StatedRoot(root, heads.get(root.partition, []), statement.node, statement.time_ms)
            found.setdefault(root.partition, []).append(named)
    return found


def disagreements(roots: dict[int, list[StatedRoot]]) -> list[Finding]:
    """Claims on the rows of one vector that name different ones."""
    found = []
    for stated in roots.values():
        first: dict[tuple[bytes, tuple[bytes, ...]], StatedRoot] = {}
        for named in stated:
            other = first.setdefault((named.root.vector, tuple(named.root.left)), named)
            if difference := named.difference(other.root):
                found.append(named.finding(difference, str(other)))
    return found


def heads_of(statements: Iterable[Statement]) -> dict[LogName, list[StatedHead]]:
    """The heads that statements name, by log."""
    found: dict[LogName, list[StatedHead]] = {}
    for statement in statements:
        own = set(statement.own)
        for head in statement.heads:
            named = StatedHead(head, statement.node, statement.time_ms, head.origin in own)
            found.setdefault(LogName(head.partition, head.origin), []).append(named)
    return found


def contradictions(stated: dict[LogName, list[StatedHead]]) -> list[Finding]:
    """Claims on the same operation that name different histories: a fork."""
    found = []
    for name, each in stated.items():
        first: dict[int, StatedHead] = {}
        for named in each:
            other = first.setdefault(named.head.sequence, named)
            if other.head.chain != named.head.chain:
                found.append(Finding(Kind.FORKED, f"{name}: {other} and that of node {named.node.hex()} contradict each other"))
    return found
