"""Changes of memory items.

Changes of the set of indexed fields of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

import msgspec

from shoal import values
from shoal.crdt.applier import Applier, Appliers, Effects, always, bare
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidInput
from shoal.kinds import Kind
from shoal.kinds.items import state as items
from shoal.names import check_label, check_name
from shoal.values import forms as vectors

_TIME_END_MS = 1 << 62  # 8 bytes hold it.
TOGETHER_MAX = 4096  # Items of one change: as many as a request has elements.
FEW_MAX = 64  # Labels, vectors and fields: as many as a request may name.


def _applier(apply: Callable[[Rows, Stamp, Any], None], check: Callable[[Any], None]) -> Applier:
    def checked(_stamp: Stamp, change: Any) -> None:
        try:
            check(change)
        except InvalidInput as error:
            raise BadOperation(error.message, reason="content") from None

    return bare(Kind.ITEMS, apply, checked)


def _check_put(put: items.Put) -> None:
    _check_path(put)
    _check_many(put.vectors, FEW_MAX)
    values.check(put.value)
    for vector in put.vectors:
        if len(vector) > vectors.VECTOR_DIMS_MAX * vectors.FLOAT_BYTES:
            raise BadOperation(f"a vector has more than {vectors.VECTOR_DIMS_MAX} numbers", reason="content")
        vectors.check(vector)
    _check_time(put.created_ms)
    _check_time(put.expires_ms)


def _check_refresh(refresh: items.Refresh) -> None:
    _check_many(refresh.items, TOGETHER_MAX)
    for refreshed in refresh.items:
        _check_path(refreshed)
        _check_time(refreshed.expires_ms)


def _check_expire(expire: items.Expire) -> None:
    _check_many(expire.items, TOGETHER_MAX)
    for erased in expire.items:
        _check_path(erased)


def _parts(change: items.Refresh | items.Expire, most: int) -> Iterator[items.Refresh | items.Expire]:
    if len(change.items) > TOGETHER_MAX:  # Its check says so.
        yield change
        return
    for start in range(0, len(change.items), most):
        yield msgspec.structs.replace(change, items=change.items[start : start + most])


def _check_path(change: items.Put | items.Delete | items.Refreshed) -> None:
    _check_many(change.rest, FEW_MAX)
    for label in change.rest:
        check_label(label)
    check_name("key", change.key)


def _check_many(parts: Sized, most: int) -> None:
    """Before each is looked at: no node issues more."""
    if len(parts) > most:
        raise BadOperation(f"a change of items names {len(parts)} parts, where {most} are the most", reason="content")


def _check_time(ms: int) -> None:
    if not 0 <= ms < _TIME_END_MS:
        raise InvalidInput(f"{ms} is not a valid time of an item.")


def _address(first: str, _stamp: Stamp, change: items.Put | items.Delete) -> str:
    return items.address(first, change.rest, change.key)


def _check_declare(_stamp: Stamp, change: items.Declare) -> None:
    _check_many(change.fields, FEW_MAX)
    for field in change.fields:
        _check(field)


def _check_drop(_stamp: Stamp, change: items.Drop) -> None:
    _check_many(change.fields, FEW_MAX)
    for field, _ in change.fields:
        _check(field)


def _check(field: str) -> None:
    try:
        check_name("field", field)
    except InvalidInput as error:
        raise BadOperation(error.message, reason="content") from None


APPLIERS: Appliers = {
    items.Put: _applier(items.apply_put, _check_put)._replace(id_of=_address),
    items.Delete: _applier(items.apply_delete, _check_path)._replace(id_of=_address, effects=Effects(frees=always)),
    items.Refresh: _applier(items.apply_refresh, _check_refresh)._replace(parts=_parts),
    items.Expire: _applier(items.apply_expire, _check_expire)._replace(effects=Effects(frees=always), parts=_parts),
    items.Declare: bare(Kind.ITEMS, items.apply_declare, _check_declare),
    items.Drop: bare(Kind.ITEMS, items.apply_drop, _check_drop),
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    list(items.below(rows, ()))
