"""The stored replies to idempotency keys: a repeated request gets the reply of the first one.

Laws:
- A key stands for one request. It is looked up before any precondition is checked. A
  repeated request gets the stored reply; a different request under the key is rejected.
- The stored reply travels in the operation, so that every node that holds the operation
  can answer. Once the operation has left the log, the key's row has it (`shoal.node.collection.answers`).
- Of a write of which rules of redaction replaced something, the digest is of what rules never replace: nothing of it is kept,
  and a repeat is the same write whatever they replace by then.
- A key is known for `key_window_s`. An older one that a client made is rejected, because it may have been forgotten; an older
  one that a user chose may be used for another request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import astuple

from shoal.cluster import operation
from shoal.config import Config
from shoal.crdt.dot import Dot
from shoal.errors import InvalidValue, KeyExpired, KeyReused, StoreCorrupt
from shoal.kinds.redaction.serving.fields import without_contents
from shoal.node import mutation
from shoal.node.collection import answers
from shoal.node.collection.answers import Changed, Kept
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.session import is_made_before
from shoal.raising import why
from shoal.storage import keys
from shoal.storage.interface import Storage


class StoredReply(msgspec.Struct, array_like=True, frozen=True):
    """The part of a request and its reply that the operation keeps for the key."""

    digest: bytes  # SHA-256 of the request.
    reply: requests.AnyReply


class Answered(msgspec.Struct, frozen=True):
    """The reply of an earlier request under the same key."""

    reply: requests.AnyReply
    dot: Dot  # Of the operation that the request became.
    changed: list[Changed]  # By the operation.


_encoder = msgspec.msgpack.Encoder()


@cache
def _receipts() -> msgspec.msgpack.Decoder[StoredReply]:
    # It knows every kind of reply: making it takes a twentieth of the first opening, and few openings answer a repeated key.
    return msgspec.msgpack.Decoder(StoredReply)


class IdempotencyTable:
    """Looks up idempotency keys. The issuer writes them."""

    def __init__(self, storage: Storage, now_ms: Callable[[], int], config: Config) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._window_ms = config.key_window_s * 1000
        self._window_s = config.key_window_s

    def find(self, partition: int, key: str, request: requests.AnyWrite, asked: Any = None) -> Answered | None:
        """The reply to this key, if it was used before; else None. `asked` is the request before something was replaced in it.

        Raises:
            KeyReused: it was used for a different request.
            KeyExpired: it is unknown, and older than the time for which keys are remembered; or its answer was erased.
            StoreCorrupt: what is stored of the key cannot be read. Whether an earlier attempt wrote anything is unknown.
        """
        try:
            claimed = self._storage.get(keys.request_key(partition, key))
            if claimed is not None:
                row = answers.unpack_answer(claimed)
                kept = row.kept or self._logged(partition, row.dot)
                if not kept.receipt:
                    raise KeyExpired(
                        f"idempotency key {key!r} was used, and its answer was erased with everything in the space. Nothing "
                        "was written now. Use a new key for a new request."
                    )
                receipt = _stored_reply(kept.receipt)
                if not any(receipt.digest == digest for digest in _digests(request, asked)):
                    raise KeyReused(
                        f"idempotency key {key!r} was already used for another request. Nothing was written. "
                        "Use a new key for a new request."
                    )
                return Answered(receipt.reply, row.dot, kept.changed)
        except StoreCorrupt as damage:
            raise _unreadable(key, damage) from damage
        if is_made_before(key, self._now_ms() - self._window_ms):
            raise KeyExpired(
                f"idempotency key {key!r} is older than {self._window_s} s, the time for which keys are remembered. "
                "Nothing was written now. Read the state to see whether the earlier attempt was applied."
            )
        return None

    def _logged(self, partition: int, dot: Dot) -> Kept:
        """The entry of the log for an operation.

        Raises:
            StoreCorrupt: the operation is missing or damaged.
        """
        stored = self._storage.get(keys.log(partition, dot))
        if stored is None:
            raise StoreCorrupt(
                f"operation {dot.sequence} of {dot.origin.hex()} in partition {partition} is missing from the log."
            )
        try:
            body = operation.decode(operation.LogEntry.unpack(stored).packed)
        except InvalidValue as error:
            raise _undecodable(error) from None
        return Kept(body.receipt, answers.changed_by(mutation.decode(body.payload)))


def _stored_reply(receipt: bytes) -> StoredReply:
    try:
        return _receipts().decode(receipt)
    except ValueError as error:  # msgspec's errors are ValueErrors, and so are those of text not in UTF-8.
        raise _undecodable(error) from None


def _undecodable(error: Exception) -> StoreCorrupt:
    return StoreCorrupt(f"the stored answer cannot be decoded: {error}.")


def _unreadable(key: str, damage: StoreCorrupt) -> StoreCorrupt:
    error = StoreCorrupt(
        f"this node cannot read whether it has applied the request with idempotency key {key!r}: {why(damage)}. Nothing was "
        "written now, and an earlier attempt may or may not be applied. Send the request again with the same key to another "
        "node, and run `shoal verify` here."
    )
    error.written = "unknown"
    return error


def pack(request: requests.AnyWrite, reply: requests.AnyReply, *, is_redacted: bool = False) -> bytes:
    """The stored reply of a request, as its operation carries it. `is_redacted`: something was replaced in it before."""
    return _encoder.encode(StoredReply(_digest(request, has_contents=not is_redacted), reply))


def _digests(request: requests.AnyWrite, asked: Any) -> Iterator[bytes]:
    """The digests under which a request may have been recorded, by what rules replaced in it at that time."""
    yield _digest(request)
    yield _digest(request, has_contents=False)
    if asked is not None:
        yield _digest(asked)


def _digest(request: requests.AnyWrite, *, has_contents: bool = True) -> bytes:
    """The digest by which a repeated request is recognised. Without contents it says nothing of them."""
    look = _form if has_contents else _form_without_contents
    match request:
        case requests.Batch(writes):
            form: list[object] = [look(write) for write in writes]
        case requests.Import(imported):
            form = [[look(each.write), each.time_ms, each.key, each.nonce] for each in imported]
        case _:
            form = look(request)
    return sha256(_encoder.encode(form if has_contents else ["without contents", form])).digest()


def _form_without_contents(request: requests.AnyWrite) -> list[object]:
    return _form(without_contents(request))


def _form(request: requests.AnyWrite) -> list[object]:
    """A request's kind and fields, without the last ones that have their defaults.

    A later version may append a field with a default: requests that do not set it have the same form there.
    """
    if (recognised := declaration_of(type(request)).recognised) is not None:
        return [_shape(type(request))[0], recognised(request)]
    tag, defaults, ignored = _shape(type(request))
    form = [tag, *astuple(request)]
    for index in ignored:
        form[index] = defaults[index]
    while form[-1] == defaults[len(form) - 1]:
        form.pop()
    return [None if each is NODEFAULT else each for each in form]


@cache
def _shape(kind: type[requests.AnyWrite]) -> tuple[object, tuple[object, ...], tuple[int, ...]]:
    """A kind's tag, the default at each place of its form, and the ignored places.

    A place without a default has NODEFAULT, which equals no value.
    """
    fields = msgspec.structs.fields(kind)
    defaults = [each.default if each.default_factory is NODEFAULT else each.default_factory() for each in fields]
    ignored = declaration_of(kind).not_of_key
    places = tuple(place for place, each in enumerate(fields, start=1) if each.name in ignored)
    return kind.__struct_config__.tag, (NODEFAULT, *defaults), places
