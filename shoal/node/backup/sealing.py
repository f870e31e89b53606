"""Seals what an encrypted node ships, under keys of each space that are in the bucket for this node, and opens it again.

    keys/ node, in hex    msgpack [1, a file as KEYS of a directory, {scope: a bit for each partition}]

Laws:
- A key is in the bucket before a pack that it seals is put. The file of keys is wrapped by the node's master key.
- Keys, salts and nonces are those of `shoal.storage.encrypted.rows`: each opening draws its own salts, and each seal its nonce.
- A sealed operation or row is bound to its place: its partition, and the operation's name or the number of the piece.
- Once the node has destroyed the keys of a space, no restore that is promised needs them here; then they go, and never before:
  each partition that they sealed something of has a base without it, and moments before that are not promised any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b

import msgspec

from shoal.backup.bucket import Bucket
from shoal.backup.format import KEYS, PARTITIONS, Catalogue, damaged, encode
from shoal.cluster.messages import Shipment
from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong, StoreCorrupt
from shoal.node.environment import Environment
from shoal.storage import keys
from shoal.storage.encrypted.keyring import Keyring, KeysInMemory, service_of
from shoal.storage.encrypted.rows import STORE, RowCipher, scopes_of
from shoal.storage.encrypted.storage import EncryptedStorage

_FORMAT = 1
_TAG_BYTES = 8  # Of a scope: it tells the keys of a space from those of one of the same name that was erased.
_MARK_BYTES = PARTITIONS // 8
_KEYS_MAX = 65_536

Row = tuple[bytes, bytes]

_rows = msgspec.msgpack.Decoder(list[Row])
_runs = msgspec.msgpack.Decoder(list[bytes])


class _Object(msgspec.Struct, array_like=True, frozen=True):
    format: int
    file: bytes
    marks: dict[bytes, bytes]


def name_of(node: bytes) -> str:
    """The name of the object that has the keys of a node."""
    return f"{KEYS}{node.hex()}"


def _read(packed: bytes, name: str) -> _Object:
    try:
        found = msgspec.msgpack.decode(packed, type=_Object)
    except ValueError:
        raise damaged(f"{name} cannot be decoded") from None
    if found.format != _FORMAT:
        raise damaged(f"{name} has format {found.format}, and this version reads {_FORMAT}")
    return found


class Sealer:
    """Seals for one node. `shoal.node.backup.sealing.sealer` makes one."""

    def __init__(self, storage: EncryptedStorage, name: str, found: _Object | None, environment: Environment) -> None:
        self.name = name
        self._storage = storage
        self._home = KeysInMemory(None if found is None else found.file)
        service = storage.keyring.service
        entropy = environment.entropy
        self._keyring = Keyring(self._home, service, entropy=entropy, now_ms=environment.now_ms, keys_max=_KEYS_MAX)
        self._cipher = RowCipher(self._keyring, entropy)
        self._marks = {} if found is None else {scope: bytearray(marks) for scope, marks in found.marks.items()}
        self._stored = b"" if found is None else encode(found)

    def operation(self, shipment: Shipment, plain: bytes) -> bytes:
        """The content of an operation, sealed under the keys of the spaces that it names."""
        scopes = scopes_of(keys.LOG, shipment.chain + shipment.packed)
        place = place_of(shipment.partition, shipment.origin, shipment.sequence)
        return self._cipher.seal(place, self._scopes(shipment.partition, scopes), plain)

    def rows(self, number: int, nth: int, hlc: int, rows: Sequence[Row]) -> list[bytes]:
        """Rows of a piece of a base: those beside each other of the same spaces are sealed together."""
        runs: list[tuple[tuple[bytes, ...], list[Row]]] = []
        for row in rows:
            scopes = scopes_of(*row)
            if not runs or runs[-1][0] != scopes:
                runs.append((scopes, []))
            runs[-1][1].append(row)
        return [
            self._cipher.seal(run_of(number, hlc, nth, at), self._scopes(number, scopes), encode(some))
            for at, (scopes, some) in enumerate(runs)
        ]

    def _scopes(self, number: int, scopes: Sequence[bytes]) -> list[bytes]:
        found = [self._scope(scope) for scope in scopes]
        for scope in found:
            marks = self._marks.setdefault(scope, bytearray(_MARK_BYTES))
            marks[number // 8] |= 1 << number % 8
        return found

    def _scope(self, scope: bytes) -> bytes:
        """The scope here of one of the node's: another one once its keys were destroyed."""
        there = self._storage.keyring.find(scope)
        naming = b"" if there is None else there.naming
        return blake2b(naming, digest_size=_TAG_BYTES).digest() + scope

    # ── the object ────────────────────────────────────────────────────────────

    @property
    def is_stale(self) -> bool:
        """Whether another master key is in force by now."""
        return self._keyring.master != self._storage.keyring.master

    async def store(self, bucket: Bucket) -> None:
        """Have the keys in the bucket, if they have changed.

        Raises:
            BackupUnreachable: they may be there, or not.
            MasterKeyWrong: the master key in force cannot wrap them.
        """
        if self.is_stale:
            self._keyring.adopt(self._keyring.renewed(self._storage.keyring.service))
        packed = encode(_Object(_FORMAT, self._home.content or b"", {s: bytes(marks) for s, marks in self._marks.items()}))
        if packed != self._stored:
            await bucket.store.replace(self.name, packed)
            self._stored = packed

    # ── erasure ───────────────────────────────────────────────────────────────

    def ended(self) -> list[bytes]:
        """The scopes whose keys the node has destroyed, and that have keys here."""
        now = {self._scope(scope) for scope in self._storage.keyring.scopes}
        return [scope for scope in self._keyring.scopes if scope not in now and scope[_TAG_BYTES:] != STORE]

    def partitions(self, scopes: Collection[bytes]) -> list[int]:
        """The partitions of which something is sealed under the keys of these."""
        marks = [self._marks.get(scope, b"") for scope in scopes]
        return [number for number in range(PARTITIONS) if any(m and m[number // 8] >> number % 8 & 1 for m in marks)]

    def cleared(self, scopes: Collection[bytes], numbers: Collection[int]) -> None:
        """These partitions have a base without anything of these scopes. A scope that is in none any more loses its keys."""
        for scope in scopes:
            marks = self._marks.setdefault(scope, bytearray(_MARK_BYTES))
            for number in numbers:
                marks[number // 8] &= ~(1 << number % 8) & 0xFF
        gone = [scope for scope in scopes if not any(self._marks[scope])]
        if gone:
            destroyed = [key.number for scope in gone for key in self._keyring.scopes[scope].keys]
            self._keyring.adopt(self._keyring.renewed(), destroyed=destroyed)
            for scope in gone:
                del self._marks[scope]


async def sealer(bucket: Bucket, storage: EncryptedStorage, node: bytes, environment: Environment) -> Sealer:
    """The sealer of a node, with the keys that it has in the bucket.

    Raises:
        BackupUnreachable: the bucket cannot be read.
        BackupDamaged: the keys are gone, or cannot be read; packs are there that they sealed.
        MasterKeyWrong: the node's master key does not unwrap them.
    """
    name = name_of(node)
    packed = await bucket.store.get(name)
    if packed is None and _sealed_by(bucket.catalogue, name):
        raise damaged(f"{name} is missing, and packs are sealed under its keys. Declare another place for the backup")
    return Sealer(storage, name, None if packed is None else _read(packed, name), environment)


def _sealed_by(catalogue: Catalogue, name: str) -> bool:
    return any(pack.sealed == name for packs in (catalogue.segments, catalogue.packs) for pack in packs.values())


class Opened:
    """The keys of one node, which open what it sealed. All raise `BackupDamaged` if something does not open."""

    def __init__(self, cipher: RowCipher) -> None:
        self._cipher = cipher

    def operation(self, number: int, origin: bytes, sequence: int, sealed: bytes) -> bytes:
        """The content of an operation."""
        return _opened(self._cipher, place_of(number, origin, sequence), sealed, f"operation {sequence} of {origin.hex()}")

    def rows(self, number: int, nth: int, hlc: int, content: bytes) -> bytes:
        """The rows of a piece of a base, as in a plain one."""
        what = f"piece {nth} of the base of partition {number}"
        try:
            runs = _runs.decode(content)
            plain = [_opened(self._cipher, run_of(number, hlc, nth, at), run, what) for at, run in enumerate(runs)]
            return encode([row for some in plain for row in _rows.decode(some)])
        except ValueError:
            raise damaged(f"{what} cannot be decoded") from None


class Opener:
    """Opens what nodes have sealed. `master` gives the master key: a source as `encryption_key` has it, or a service."""

    def __init__(self, bucket: Bucket, master: str | KeyService, environment: Environment) -> None:
        self._bucket = bucket
        self._master = master
        self._environment = environment
        self._known: dict[str, Opened] = {}

    async def keys(self, name: str) -> Opened:
        """The keys of the node whose object this is.

        Raises:
            MasterKeyWrong: there is no master key, or it is the wrong one.
            BackupDamaged: the object is missing, or damaged.
        """
        found = self._known.get(name)
        if found is not None:
            return found
        if not self._master:
            raise MasterKeyWrong(
                "the backup is sealed, and no master key was given. Nothing was written. Give the one of the nodes that "
                "shipped: shoal --encryption-key file:master.key …"
            )
        packed = await self._bucket.store.get(name)
        if packed is None:
            raise damaged(f"{name} is missing, which has keys")
        entropy = self._environment.entropy
        service = service_of(self._master, entropy) if isinstance(self._master, str) else self._master
        home = KeysInMemory(_read(packed, name).file)
        try:
            keyring = Keyring(home, service, entropy=entropy, now_ms=self._environment.now_ms, keys_max=_KEYS_MAX)
        except StoreCorrupt:
            raise damaged(f"{name} has keys that cannot be read") from None
        made = self._known[name] = Opened(RowCipher(keyring, entropy))
        return made


def _opened(cipher: RowCipher, place: bytes, sealed: bytes, what: str) -> bytes:
    try:
        return cipher.open(place, sealed)
    except StoreCorrupt as error:
        raise damaged(
            f"{what} does not open ({error.message.partition('. Nothing')[0]}): it was altered, or its space was erased"
        ) from None


def place_of(number: int, origin: bytes, sequence: int) -> bytes:
    """The place to which a sealed operation is bound."""
    return b"backup operation" + number.to_bytes(2, "big") + origin + sequence.to_bytes(8, "big")


def run_of(number: int, hlc: int, nth: int, at: int) -> bytes:
    """The place to which a run of rows is bound: in which base, in which piece, and where there."""
    return b"backup rows" + number.to_bytes(2, "big") + b"".join(each.to_bytes(8, "big") for each in (hlc, nth, at))
