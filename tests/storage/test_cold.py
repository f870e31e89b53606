from __future__ import annotations

from hashlib import sha256

import pytest

from shoal.errors import StoreCorrupt
from shoal.kinds.thread.state import dag
from shoal.node.transaction import ObjectRows, Transaction
from shoal.storage import cold, keys
from shoal.storage.cold import ColdStorage, Stub
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind

THREAD = keys.object_rows(7, Kind.THREAD, "crew", "a")
STUB = Stub(b"p" * 32, b"k" * 32, 5, 4711)
CHUNK = b"x" * 4711
DIGEST = sha256(CHUNK).digest()


@pytest.fixture
def storage() -> ColdStorage:
    """A store of which one chunk is in a pack, beside a row that is here."""
    raw = MemoryStorage()
    raw.write({THREAD + b"Bmain": b"heads", THREAD + b"D" + DIGEST: STUB.packed(), cold.record_key(THREAD, STUB.pack): b""})
    return ColdStorage(raw)


def test_a_stub_is_never_read_as_content(storage: ColdStorage) -> None:
    held = storage.snapshot()
    for read in (
        lambda: storage.get(THREAD + b"D" + DIGEST),
        lambda: list(storage.scan(THREAD, None)),
        lambda: list(held.scan(THREAD, THREAD + b"\xff")),
        lambda: ObjectRows(Transaction(storage), THREAD).get(b"D" + DIGEST),
    ):
        with pytest.raises(StoreCorrupt, match="in the object store, and was not fetched"):
            read()
    assert storage.get(THREAD + b"Bmain") == b"heads"
    assert list(storage.scan(THREAD, THREAD + b"C")) == [(THREAD + b"Bmain", b"heads")]


def test_the_error_of_a_stub_names_its_row(storage: ColdStorage) -> None:
    with pytest.raises(StoreCorrupt) as raised:
        ObjectRows(Transaction(storage), THREAD).get(b"D" + DIGEST)
    assert raised.value.lost == (b"D" + DIGEST,)


def test_the_size_of_what_is_away_is_known(storage: ColdStorage) -> None:
    rows = ObjectRows(Transaction(storage), THREAD)
    assert rows.size(b"D" + DIGEST) == storage.size(THREAD + b"D" + DIGEST) == len(CHUNK)
    assert dag.is_away(rows, DIGEST)
    assert rows.size(b"D" + b"?" * 32) is None
    assert dict(rows.sizes(after=None, limit=9)) == {b"Bmain": 5, b"D" + DIGEST: len(CHUNK)}


@pytest.mark.parametrize("row", [b"D", b"Vc", b"\x00\x00\x00\x00\x01D", b"\x00\x00\x00\x00\x01Vc"])
def test_content_that_looks_like_a_stub_is_content(row: bytes) -> None:
    value = STUB.packed()
    assert cold.stub_of(THREAD + row + sha256(value).digest(), value) is None
    assert cold.stub_of(THREAD + row + DIGEST, value) == STUB


@pytest.mark.parametrize(
    "key",
    [
        THREAD + b"E" + DIGEST,
        THREAD + b"D" + DIGEST[:-1],
        THREAD + b"Vm" + DIGEST,
        keys.object_rows(7, Kind.DOCUMENT, "crew", "a") + b"D" + DIGEST,
        keys.meta("D") + DIGEST,
    ],
)
def test_only_chunks_have_stubs(key: bytes) -> None:
    assert cold.stub_of(key, STUB.packed()) is None
    assert cold.size_of(key, STUB.packed()) == len(STUB.packed())


def test_a_store_without_stubs_is_read_as_it_is() -> None:
    raw = MemoryStorage()
    storage = ColdStorage(raw)
    assert storage.get == raw.get
    assert storage.scan == raw.scan
    storage.arm()
    raw.write({THREAD + b"D" + DIGEST: STUB.packed()})
    with pytest.raises(StoreCorrupt):
        storage.get(THREAD + b"D" + DIGEST)


def test_the_objects_with_packs_are_listed_by_range(storage: ColdStorage) -> None:
    other = keys.object_rows(7, Kind.THREAD, "crew", "b")
    storage.write({cold.record_key(other, b"q" * 32): b"", cold.record_key(other, b"r" * 32): b""})
    assert cold.objects(storage, 7) == {THREAD, other}
    assert cold.objects(storage, 8) == set()
    assert cold.objects(storage, 7, other + b"D") == {other}
    assert cold.objects(storage, 7, THREAD, THREAD + b"D") == {THREAD}
    assert cold.objects(storage, 7, THREAD[:3], THREAD[:2] + b"\x08") == {THREAD, other}
    assert [(of, pack) for of, pack, _ in cold.records(storage)] == [
        (THREAD, b"p" * 32),
        (other, b"q" * 32),
        (other, b"r" * 32),
    ]
