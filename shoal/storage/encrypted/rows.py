"""Seal rows, and decide to which spaces a row belongs and which part of its key is hidden.

Seals rows, and hides parts of their keys.

    a sealed row      layers₁ (1), then a layer: key₄ salt₈ nonce₁₂ ciphertext and tag₁₆
    its ciphertext    the value, or (for a key with a hidden part) length₂ hidden value
    more layers       layers₁ (2 …), then a layer whose ciphertext is the sealed row with one layer less
    associated data   the row's key on disk; for layers₁ above 1, a 0 byte and layers₁ before it

Laws:
- AES-256-GCM. The key of a layer is derived from a data key and a salt (SP 800-108, one block of HMAC-SHA-256). Each
  opening draws its own salt for each data key, and each row its own random nonce of 96 bits, and no salt seals more than
  2³² rows (SP 800-38D, 8.3). So nonces do not repeat after a crash or in a copy of the directory.
- Its key on disk is associated data: a row that is moved to another key does not open.
- A hidden part is replaced by BLAKE2b, keyed by the scope's naming key, over the whole row key.

To which spaces a row belongs, and which part of its key is hidden.

Laws:
- Row keys stay in order, because everything above storage scans them. So the names in them are readable on disk: of
  spaces, objects, branches, steps, items and fields, and the keys that users chose.
- A part of a row key that is content, or a hash of content, is hidden: members of sets, values in indexes, chunks'
  hashes, checkpoints' ids. It runs to the end of the key, and all keys that share the part before it (a *group*) hide it.
- The row of an object's generation, which stays forever and holds no content, belongs to no space.
- The content of an operation, or of the answer to a request's key, belongs to the spaces of the objects that it names.

Keys and values are those of docs/STORAGE.md.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.errors import StoreCorrupt, TooLarge
from shoal.kinds import declared
from shoal.storage import keys
from shoal.storage.encrypted.keyring import NONCE_BYTES, Entropy, Keyring, ScopeKeys

NAME_BYTES: Final = 16
SALT_BYTES: Final = 8
_NUMBER_BYTES: Final = 4
_SALTED: Final = _NUMBER_BYTES + SALT_BYTES
_HEADER: Final = 1 + _SALTED
_BODY: Final = _HEADER + NONCE_BYTES
ROWS_PER_SALT_MAX: Final = 1 << 32
_LAYERS_MAX: Final = 255
_DRAWN: Final = 256  # Nonces at a time.
_CIPHERS_MAX: Final = 4096  # Derived keys in memory; each past opening may have rows of its own.
_DERIVED_FOR: Final = b"\x00\x00\x00\x01shoal row key\x00"


class Live:
    """The key that seals the rows of a scope now: one data key and one salt."""

    __slots__ = ("_last", "_name", "_naming", "encrypt", "prefix")

    def __init__(self, keys: ScopeKeys, salted: bytes, cipher: AESGCM) -> None:
        self.prefix = b"\x01" + salted
        self.encrypt = cipher.encrypt
        self._naming = blake2b(key=keys.naming, digest_size=NAME_BYTES)
        self._last = self._name = b""

    def name(self, key: bytes, clear: int) -> bytes:
        """The key below of a row whose key is hidden from `clear` on."""
        if key != self._last:  # A save first looks whether its checkpoint is there.
            naming = self._naming.copy()
            naming.update(key)
            self._last, self._name = key, key[:clear] + naming.digest()
        return self._name


class RowCipher:
    """Seals and opens the rows of one opening. `lives` has what seals rows by scope, as far as it was needed."""

    def __init__(self, keyring: Keyring, entropy: Entropy, *, rows_per_salt_max: int = ROWS_PER_SALT_MAX) -> None:
        self.lives: dict[bytes, Live] = {}
        self._keyring = keyring
        self._entropy = entropy
        self._rows_max = self._rows_left = rows_per_salt_max
        self._nonces: list[bytes] = []
        self._version = keyring.version
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()

    def find(self, scope: bytes) -> Live | None:
        """The key that seals the rows of a scope; None if it has no keys, and so no rows."""
        self.follow()
        return self.lives.get(scope) or (None if self._keyring.find(scope) is None else self.live(scope))

    def live(self, scope: bytes) -> Live:
        """The key that seals the rows of a scope; it is made if there is none.

        Raises:
            StorageFull: the scope has no key yet, and none can be made.
        """
        keys = self._keyring.ensure(scope)
        self.follow()
        salted = keys.current.number.to_bytes(_NUMBER_BYTES, "big") + self._entropy(SALT_BYTES)
        live = self.lives[scope] = Live(keys, salted, self._derived(salted))
        return live

    def follow(self) -> bool:
        """Forget what was derived from keys that have changed; whether there were any."""
        if self._version == self._keyring.version:
            return False
        self._version = self._keyring.version
        self.lives.clear()
        self._ciphers.clear()
        return True

    def nonces(self, count: int) -> list[bytes]:
        """So many random nonces, to seal as many rows with `lives`; none is ever returned again.

        They are drawn some at a time, because a call of the system lets other threads run, which costs more than the call.
        """
        self._rows_left -= count
        if self._rows_left < 0:  # As if all rows had been sealed under each salt.
            self.lives.clear()
            self._rows_left = self._rows_max - count
        if len(self._nonces) < count:
            drawn = self._entropy(NONCE_BYTES * max(count, _DRAWN))
            self._nonces = [drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)]
        taken = self._nonces[-count:] if count else []
        del self._nonces[len(self._nonces) - count :]
        return taken

    def seal(self, place: bytes, scopes: Sequence[bytes], plain: bytes) -> bytes:
        """The row at a key below, sealed under the key of each scope, the innermost first.

        Raises:
            StorageFull: a scope has no key yet, and none can be made.
            TooLarge: there are more than 255 scopes.
        """
        check_layers(scopes)
        sealed = plain
        for layer, (scope, nonce) in enumerate(zip(scopes, self.nonces(len(scopes)), strict=True), 1):
            live = self.lives.get(scope) or self.live(scope)
            sealed = bytes([layer]) + live.prefix[1:] + nonce + live.encrypt(nonce, sealed, _bound_to(place, layer))
        return sealed

    def open(self, place: bytes, sealed: bytes) -> bytes:
        """The plain row.

        Raises:
            StoreCorrupt: it is damaged, was moved, or is sealed under a key that this directory does not have.
        """
        layers = sealed[0] if sealed else 0
        if not layers:
            raise _unreadable(place, "it is no sealed row")
        for layer in range(layers, 0, -1):
            sealed = self._without(place, sealed, layer)
        return sealed

    def is_under(self, place: bytes, sealed: bytes, numbers: Collection[int]) -> bool:
        """Whether one of the data keys of these numbers seals a row, in any layer.

        Raises:
            StoreCorrupt: as `open`, if that cannot be told.
        """
        for layer in range(sealed[0] if sealed else 0, 0, -1):
            if int.from_bytes(sealed[1 : 1 + _NUMBER_BYTES], "big") in numbers:
                return True
            if layer > 1:
                sealed = self._without(place, sealed, layer)
        return False

    def _without(self, place: bytes, sealed: bytes, layer: int) -> bytes:
        """A sealed row without its outermost layer."""
        cipher = self._ciphers.get(sealed[1:_HEADER]) or self._derived(sealed[1:_HEADER])
        try:
            return cipher.decrypt(sealed[_HEADER:_BODY], sealed[_BODY:], _bound_to(place, layer))
        except (InvalidTag, ValueError):
            raise _unreadable(place, "it does not pass its authentication: it was damaged, or moved") from None

    def _derived(self, salted: bytes) -> AESGCM:
        """The cipher of a data key's number₄ and salt₈."""
        secret = self._keyring.secret(int.from_bytes(salted[:_NUMBER_BYTES], "big"))
        if secret is None or len(salted) != _SALTED:
            raise _unreadable(b"", "it is sealed under a data key that this directory does not have (any more)")
        cipher = AESGCM(hmac.digest(secret, _DERIVED_FOR + salted, "sha256"))
        self._ciphers[salted] = cipher
        if len(self._ciphers) > _CIPHERS_MAX:
            self._ciphers.popitem(last=False)
        return cipher


def check_layers(scopes: Sequence[bytes]) -> None:
    """Whether a row can be sealed under the keys of all these scopes.

    Raises:
        TooLarge: there are more than 255.
    """
    if len(scopes) > _LAYERS_MAX:
        raise TooLarge(f"an operation names {len(scopes)} spaces, and {_LAYERS_MAX} are possible. Nothing was written.")


def _bound_to(place: bytes, layer: int) -> bytes:
    """The associated data of a layer. No key of a row begins with a 0 byte."""
    return place if layer == 1 else b"\0" + bytes([layer]) + place


def with_hidden(hidden: bytes, value: bytes) -> bytes:
    """The plain text of a row whose key has a hidden part."""
    return len(hidden).to_bytes(2, "big") + hidden + value


def unhidden(plain: bytes) -> tuple[bytes, bytes]:
    """The hidden part and the value in such a plain text."""
    end = 2 + int.from_bytes(plain[:2], "big")
    return plain[2:end], plain[end:]


def _unreadable(place: bytes, why: str) -> StoreCorrupt:
    table = f" of table {chr(place[0])}" if place else ""
    return StoreCorrupt(
        f"a sealed row{table} cannot be opened: {why}. Nothing was written. Run `shoal verify` to see what else is damaged."
    )


STORE: Final = b""
"""The scope of rows that belong to no space. No space has an empty name."""
STAGED: Final = b"\x00"
"""The scope of staged snapshots of peers, which hold rows of many spaces. No space has this name."""

_LISTING_TABLES: Final = frozenset(keys.SNAPSHOT + keys.LISTED)
_CATALOG_TABLES: Final = frozenset(keys.CATALOG + keys.STATUS)
HIDING_TABLES: Final = frozenset(keys.OBJECT + keys.INDEX)
"""The tables of which keys may have hidden parts."""
STORE_TABLES: Final = frozenset(keys.META + keys.VECTOR + keys.BASE + keys.RETIRED + keys.GARBAGE)
"""The tables of which all rows are in the scope `STORE`."""
_LOG, _KEY, _STAGED, _INDEX = keys.LOG[0], keys.KEY[0], keys.STAGED[0], keys.INDEX[0]
_CHAIN_BYTES, _DOT_BYTES, _GENERATION_BYTES = 32, 24, 5
_KEPT_AT = _DOT_BYTES + 8


class _Operation(msgspec.Struct, array_like=True, gc=False):
    """An operation, as far as it is read here."""

    hlc: int
    wall_ms: int
    context: msgspec.Raw
    key: msgspec.Raw
    payload: bytes


class _Change(msgspec.Struct, array_like=True, gc=False):
    """A mutation, or an object that an operation changed, as far as it is read here."""

    kind: int
    space: str


class _Kept(msgspec.Struct, array_like=True, gc=False):
    receipt: bytes
    changed: list[_Change]


_operation = msgspec.msgpack.Decoder(_Operation)
_changes = msgspec.msgpack.Decoder(list[_Change])
_kept = msgspec.msgpack.Decoder(_Kept)


def scopes_of(key: bytes, value: bytes) -> tuple[bytes, ...]:
    """The spaces under whose keys a row is sealed, or `STORE` or `STAGED` alone. The first is the innermost layer."""
    table = key[0] if key else 0
    if table == _LOG:
        return _spaces_of(value)
    if table in HIDING_TABLES:
        return (place_of(key)[0],)
    if table in _LISTING_TABLES:
        return (_space_in(key),)
    if table in _CATALOG_TABLES:
        return (key[3 : 3 + int.from_bytes(key[1:3], "big")],)
    if table == _KEY:
        return _kept_spaces(value)
    return (STAGED,) if table == _STAGED else (STORE,)


def _space_in(key: bytes) -> bytes:
    return key[6 : 6 + int.from_bytes(key[4:6], "big")]


def _spaces_of(value: bytes) -> tuple[bytes, ...]:
    try:
        changes = _changes.decode(_operation.decode(value[_CHAIN_BYTES:]).payload)
    except ValueError:
        return (STORE,)  # It is no operation: `shoal verify` says so.
    return _named(changes)


def _kept_spaces(value: bytes) -> tuple[bytes, ...]:
    if len(value) <= _DOT_BYTES:
        return (STORE,)
    try:
        kept = _kept.decode(value[_KEPT_AT:])
        return _named(kept.changed) if kept.receipt else (STORE,)
    except ValueError:
        return (STORE,)


def _named(changes: list[_Change]) -> tuple[bytes, ...]:
    if len(changes) == 1:
        return (changes[0].space.encode(),)
    return tuple(dict.fromkeys([change.space.encode() for change in changes])) or (STORE,)


def hidden_from(key: bytes) -> int:
    """The index in a row key from which it is hidden; its length or more if nothing is."""
    return place_of(key)[1] if key and key[0] in HIDING_TABLES else len(key)


def place_of(key: bytes) -> tuple[bytes, int]:
    """The scope of a row of one of `HIDING_TABLES`, and `hidden_from` of its key."""
    try:
        at = 6 + (key[4] << 8) + key[5]
        space = key[6:at]
        at += 2 + (key[at] << 8) + key[at + 1]
        first = key[at]
        if first == 0:
            if at + 1 == len(key):
                return STORE, at + 1
            at += _GENERATION_BYTES
            first = key[at]
        rule = (_INDEXES if key[0] == _INDEX else _RULES[key[3]]).get(first)
    except (IndexError, KeyError):
        return _space_in(key), len(key)  # It is shorter than a row's key: the end of a range, or a row that hides nothing.
    if rule is None:
        return space, len(key)
    return space, at + (rule if rule.__class__ is int else rule(key[at:]))  # type: ignore[operator]


def _index(row: bytes) -> int:  # V len₂ field value path
    return 3 + int.from_bytes(row[1:3], "big")


_Rules = Mapping[int, int | Callable[[bytes], int]]  # By the first byte of a row: how much of the row is not hidden.
_INDEXES: Final[_Rules] = {ord("V"): _index}
_RULES: Final[dict[int, _Rules]] = {}
for _kind, _hidden in declared("HIDDEN", "state"):  # Of a thread, those of its parts too.
    _RULES[_kind] = {**_RULES.get(_kind, {}), **_hidden}
