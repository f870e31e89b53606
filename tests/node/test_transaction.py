from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.node.transaction import Nested, Transaction
from shoal.storage.interface import MemoryStorage

KEYS = st.binary(min_size=1, max_size=2)
STORED = st.dictionaries(KEYS, st.just(b"stored"), max_size=8)
WRITES = st.lists(st.tuples(KEYS, st.sampled_from((b"new", None))), max_size=12)


def written(transaction: Transaction, model: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        transaction.delete(key)
        model.pop(key, None)
    else:
        transaction.put(key, value)
        model[key] = value


def shows(transaction: Transaction, model: dict[bytes, bytes], start: bytes, stop: bytes | None) -> None:
    """Scans of the transaction return what the model holds."""
    expected = sorted((key, value) for key, value in model.items() if start <= key and (stop is None or key < stop))
    assert list(transaction.scan(start, stop)) == expected
    assert list(transaction.scan(start, stop, reverse=True)) == expected[::-1]
    assert list(transaction.scan(start, stop, limit=2)) == expected[:2]


@given(STORED, WRITES, KEYS, st.none() | KEYS)
def test_a_scan_shows_what_was_written_before_it(
    stored: dict[bytes, bytes], writes: list[tuple[bytes, bytes | None]], start: bytes, stop: bytes | None
) -> None:
    storage = MemoryStorage()
    storage.write(stored)
    transaction, model = Transaction(storage), dict(stored)
    shows(transaction, model, start, stop)
    for key, value in writes:
        written(transaction, model, key, value)
        shows(transaction, model, start, stop)


@given(STORED, WRITES, WRITES, WRITES)
def test_a_nested_transaction_begins_anew_when_it_is_cleared(
    stored: dict[bytes, bytes],
    absorbed: list[tuple[bytes, bytes | None]],
    dropped: list[tuple[bytes, bytes | None]],
    later: list[tuple[bytes, bytes | None]],
) -> None:
    storage = MemoryStorage()
    storage.write(stored)
    transaction, model = Transaction(storage), dict(stored)
    own = Nested(transaction)
    for key, value in absorbed:
        written(own, model, key, value)
    shows(own, model, b"", None)
    transaction.absorb(own)
    own.clear()
    for key, value in dropped:
        written(own, dict(model), key, value)
    own.clear()
    shows(own, model, b"", None)
    for key, value in later:
        written(own, model, key, value)
    shows(own, model, b"", None)
