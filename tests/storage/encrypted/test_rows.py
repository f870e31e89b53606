"""Sealed rows: what damages them, what hides their keys, and that scans show plain order."""

from __future__ import annotations

from collections.abc import Iterator
from os import urandom
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import operation
from shoal.config import Config, MiB
from shoal.crdt.dot import Dot, Origin
from shoal.errors import StoreCorrupt, TooLarge
from shoal.kinds.counter import state as counter
from shoal.node import mutation
from shoal.node.mutation import Mutation
from shoal.storage import keys
from shoal.storage.encrypted import ordering
from shoal.storage.encrypted.keyring import KeysInMemory
from shoal.storage.encrypted.rows import STAGED, STORE, RowCipher, hidden_from, scopes_of
from shoal.storage.encrypted.storage import EncryptedStorage
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from shoal.storage.rocks import RocksStorage
from tests.storage.encrypted.conftest import OpenKeys, Sealed

ROW = keys.object_rows(7, Kind.REGISTER, "crew", "goal") + b"S"
ORIGIN = Origin(b"o" * 16)


def in_set(element: bytes) -> bytes:
    return keys.object_rows(7, Kind.SET, "crew", "urls") + b"E" + element


def written(storage: EncryptedStorage, rows: dict[bytes, bytes | None]) -> None:
    storage.write(rows)
    storage.sync()


def logged(*spaces: str) -> bytes:
    made = [Mutation(Kind.COUNTER, space, "n", counter.Add(1, None), 0) for space in spaces]
    body = operation.Body(1, 2, [], "key", mutation.encode(made))
    return operation.LogEntry(b"c" * 32, operation.encode(body)).pack()


def test_rows_are_read_as_they_were_written(sealed: Sealed) -> None:
    storage = sealed(MemoryStorage())
    storage.write({ROW: b"value", in_set(b"element"): b"dots", keys.meta("node"): b""})
    assert storage.get(ROW) == b"value"
    assert storage.get(in_set(b"element")) == b"dots"
    assert storage.get(keys.meta("node")) == b""
    assert storage.get(in_set(b"other")) is None


def test_nothing_of_a_value_or_a_hidden_key_is_below(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    storage.write({ROW: b"a secret value", in_set(b"a secret member"): b"dots"})
    storage.sync()
    below = b"".join(key + value for key, value in inner.scan(b"", None))
    assert b"secret" not in below
    assert b"goal" in below  # The control: names are readable, so the search finds what is there.


def test_equal_values_differ_below_and_equal_members_of_two_spaces_do_too(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    one = keys.object_rows(7, Kind.THREAD, "one", "t") + b"D" + b"d" * 32
    two = keys.object_rows(7, Kind.THREAD, "two", "t") + b"D" + b"d" * 32
    storage.write({one: b"the same chunk", two: b"the same chunk"})
    storage.sync()
    (first, a), (second, b) = inner.scan(b"", None)
    assert first[-16:] != second[-16:]
    assert a != b


@pytest.mark.answers("encrypted-files-show-nothing")
@pytest.mark.parametrize("key", [ROW, in_set(b"element")])
def test_a_flipped_bit_anywhere_in_a_row_is_found(sealed: Sealed, key: bytes) -> None:
    inner, home = MemoryStorage(), KeysInMemory()
    written(sealed(inner, home), {key: b"value"})
    storage = sealed(inner, home)
    assert storage.get(key) == b"value"
    ((place, row),) = inner.scan(b"", None)
    for at in range(len(row)):
        for bit in (1, 128):
            inner.alter(place, row[:at] + bytes([row[at] ^ bit]) + row[at + 1 :])
            with pytest.raises(StoreCorrupt):
                storage.get(key)
    for cut in range(1, len(row)):
        inner.alter(place, row[:cut])
        with pytest.raises(StoreCorrupt):
            list(storage.scan(b"", None))


@pytest.mark.answers("encrypted-files-show-nothing")
def test_two_rows_that_changed_places_are_found(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    written(storage, {in_set(b"one"): b"1", in_set(b"two"): b"2"})
    (first, a), (second, b) = inner.scan(b"", None)
    inner.alter(first, b)
    inner.alter(second, a)
    for member in (b"one", b"two"):
        with pytest.raises(StoreCorrupt, match="moved"):
            storage.get(in_set(member))


def test_a_copy_of_the_directory_and_another_opening_share_no_salt(sealed: Sealed) -> None:
    inner, home = MemoryStorage(), KeysInMemory()
    written(sealed(inner, home), {ROW: b"1"})
    copied, again = inner.left_by_crash(None), KeysInMemory(home.content)
    salts = {inner.get(ROW)[5:13]}  # type: ignore[index]
    for below, keys_of in ((inner, home), (copied, again)):
        written(sealed(below, keys_of), {ROW: b"2"})
        salts.add(below.get(ROW)[5:13])  # type: ignore[index]
    assert len(salts) == 3


def test_a_salt_seals_a_bounded_number_of_rows(open_keys: OpenKeys) -> None:
    cipher = RowCipher(open_keys(KeysInMemory()), urandom, rows_per_salt_max=3)
    rows = [cipher.seal(b"M", (b"crew",), b"") for _ in range(10)]
    salts = [row[5:13] for row in rows]
    assert [salts.count(salt) for salt in dict.fromkeys(salts)] == [3, 3, 3, 1]
    assert len({(row[5:13], row[13:25]) for row in rows}) == 10


def test_no_nonce_is_drawn_twice(open_keys: OpenKeys) -> None:
    cipher = RowCipher(open_keys(KeysInMemory()), urandom)
    drawn = [nonce for count in [1] * 600 + [5, 300, 1, 7] * 3 for nonce in cipher.nonces(count)]
    assert len(set(drawn)) == len(drawn) == 600 + 3 * 313
    assert {len(nonce) for nonce in drawn} == {12}


def test_without_the_naming_key_a_hidden_part_cannot_be_guessed(sealed: Sealed) -> None:
    names: set[bytes] = set()
    for _ in range(2):
        inner = MemoryStorage()
        written(sealed(inner), {in_set(b"element"): b"dots"})
        names.update(place for place, _ in inner.scan(b"", None))
    assert len(names) == 2


def test_an_operation_is_sealed_under_each_space_that_it_names(sealed: Sealed) -> None:
    row = keys.log(7, Dot(ORIGIN, 1))
    assert scopes_of(row, logged("crew")) == (b"crew",)
    assert scopes_of(row, logged("crew", "desk", "crew")) == (b"crew", b"desk")
    for lost in (b"crew", b"desk"):
        storage = sealed(MemoryStorage())
        written(storage, {row: logged("crew", "desk")})
        assert storage.get(row) == logged("crew", "desk")
        storage.keyring.adopt(storage.keyring.renewed(), destroyed=[storage.keyring.ensure(lost).current.number])
        storage.cipher.live(b"other")
        with pytest.raises(StoreCorrupt):
            storage.get(row)


def test_more_spaces_than_layers_are_refused(sealed: Sealed) -> None:
    storage = sealed(MemoryStorage())
    with pytest.raises(TooLarge, match="Nothing was written"):
        storage.write({keys.log(7, Dot(ORIGIN, 1)): logged(*[f"s{number}" for number in range(256)])})


@pytest.mark.parametrize(
    ("key", "value", "scopes"),
    [
        (keys.catalog("crew", Kind.THREAD, "t"), b"", (b"crew",)),
        (keys.status("crew", b"\x02", "t"), b"", (b"crew",)),
        (keys.listed(7, Kind.THREAD, "crew", "t"), b"", (b"crew",)),
        (keys.snapshot(7, Kind.DOCUMENT, "crew", "d"), b"", (b"crew",)),
        (keys.index_rows(7, Kind.ITEMS, "crew", "m") + b"S", b"", (b"crew",)),
        (keys.request_key(7, "k"), b"d" * 24, (STORE,)),
        (keys.request_key(7, "k"), b"d" * 32 + msgspec.msgpack.encode([b"answer", [[1, "crew", "t", 0]]]), (b"crew",)),
        (keys.request_key(7, "k"), b"d" * 32 + msgspec.msgpack.encode([b"", [[1, "crew", "t", 0]]]), (STORE,)),
        (keys.object_rows(7, Kind.THREAD, "crew", "t") + b"\0", b"generation", (STORE,)),
        (keys.request_key(7, "k"), b"d" * 32 + b"\xc1", (STORE,)),
        (keys.log(7, Dot(ORIGIN, 1)), b"c" * 32 + b"\xc1", (STORE,)),
        (keys.staged(7, 1), b"", (STAGED,)),
        (keys.vector(7, ORIGIN), b"", (STORE,)),
        (keys.meta("node"), b"", (STORE,)),
    ],
)
def test_each_table_belongs_to_a_scope(key: bytes, value: bytes, scopes: tuple[bytes, ...]) -> None:
    assert scopes_of(key, value) == scopes


HIDDEN = {
    Kind.THREAD: [(b"C", b"i" * 32), (b"D", b"d" * 32), (b"Amain\0" + b"t" * 8, b"k" * 32), (b"Sv\0\3key", b"d" * 32)],
    Kind.DOCUMENT: [(b"G", b"h" * 32)],
    Kind.COUNTER: [(b"X", b"\0\1k7"), (b"EX", b"\0\1k7")],
    Kind.SET: [(b"E", b"element")],
    Kind.BUDGET: [(b"GX", b"\0\1k7"), (b"SEX", b"\0\1k7")],
    Kind.MAP: [(b"Ekey\0sE", b"element")],
    Kind.SCHEMA: [(b"V\0\0\0\1", b"d" * 32)],
}
CLEAR = {
    Kind.THREAD: [b"Bmain", b"Nlabel", b"Ep", b"Skkey", b"T", b"Jx"],
    Kind.DOCUMENT: [b"Up", b"Rroot"],
    Kind.COUNTER: [b"V", b"Kkey", b"EKkey"],
    Kind.REGISTER: [b"S"],
    Kind.ITEMS: [b"Ipath", b"T12345678path"],
    Kind.SET: [b"N"],
    Kind.BUDGET: [b"GV", b"A" + b"o" * 16, b"P"],
    Kind.MAP: [b"Ekey\0rS", b"N"],
}


@pytest.mark.parametrize("generation", [b"", b"\0\0\0\0\3"])
def test_content_in_a_key_is_hidden_but_not_names(generation: bytes) -> None:
    for kind, cases in HIDDEN.items():
        prefix = keys.object_rows(7, kind, "crew", "name") + generation
        for clear, hidden in cases:
            assert hidden_from(prefix + clear + hidden) == len(prefix + clear)
    for kind, rows in CLEAR.items():
        prefix = keys.object_rows(7, kind, "crew", "name") + generation
        for row in rows:
            assert hidden_from(prefix + row) >= len(prefix + row)
    index = keys.index_rows(7, Kind.ITEMS, "crew", "m") + generation + b"V\0\3age"
    assert hidden_from(index + b"\2secret\0\0path") == len(index)


element = st.binary(max_size=3)
spans = st.tuples(element, st.none() | element)


@given(
    st.sets(element, max_size=40),
    st.lists(st.tuples(element, st.booleans()), max_size=6),
    st.lists(st.tuples(spans, st.booleans(), st.none() | st.integers(0, 5)), max_size=6),
    st.integers(1, 50),
    st.integers(0, 3),
)
def test_scans_of_hidden_keys_are_those_of_plain_ones(
    members: set[bytes],
    changes: list[tuple[bytes, bool]],
    asked: list[tuple[tuple[bytes, bytes | None], bool, int | None]],
    order_rows_max: int,
    sealed_every: int,
) -> None:
    from shoal.storage.encrypted.keyring import Keyring, LocalKeys
    from tests.storage.encrypted.conftest import MASTER

    home = KeysInMemory()
    keyring = Keyring(home, LocalKeys([MASTER], urandom), entropy=urandom, now_ms=lambda: 0, keys_max=1000)
    plain, storage = MemoryStorage(), EncryptedStorage(MemoryStorage(), keyring, entropy=urandom, order_rows_max=order_rows_max)
    around = {in_set(b"")[:-1] + b"D": b"before", in_set(b"")[:-1] + b"N": b"after"}
    for each in (plain, storage):
        each.write({**{in_set(member): member for member in members}, **around})
    for turn, ((low, high), reverse, limit) in enumerate(asked):
        if sealed_every and turn % sealed_every == 0:
            storage.hand_over()  # Otherwise they are read while they are held.
        start, stop = in_set(low), None if high is None else in_set(high)
        for first, last in ((start, stop), (in_set(b"")[:-1], in_set(b"")[:-1] + b"Z")):
            expected = list(plain.scan(first, last, reverse=reverse, limit=limit))
            assert list(storage.scan(first, last, reverse=reverse, limit=limit)) == expected
        for member, kept in changes:
            for each in (plain, storage):
                each.write({in_set(member): b"new" if kept else None})
        if high is not None:
            for each in (plain, storage):
                each.write({in_set(b"\xff"): b"1"}, [(in_set(low), in_set(high))] if low < high else [])
    shown = storage.snapshot()
    everything = list(plain.scan(b"", None))
    assert list(shown.scan(b"", b"\xff")) == everything
    assert list(shown.scan(b"", b"\xff")) == everything
    shown.close()


def test_the_order_of_a_large_group_is_remembered_and_follows_writes(sealed: Sealed) -> None:
    inner = MemoryStorage()
    storage = sealed(inner)
    written(storage, {in_set(b"%03d" % number): b"" for number in range(200)})
    assert len(list(storage.scan(in_set(b""), in_set(b"\xff")))) == 200
    written(storage, {in_set(b"0005"): b"new", in_set(b"007"): None})
    found = [key[-4:] for key, _ in storage.scan(in_set(b"004"), in_set(b"009"))]
    assert found == [in_set(each)[-4:] for each in (b"004", b"005", b"006", b"008")] or b"0005" in found
    backwards = [key for key, _ in storage.scan(in_set(b""), in_set(b"\xff"), reverse=True, limit=3)]
    assert backwards == [in_set(b"199"), in_set(b"198"), in_set(b"197")]
    assert len(list(storage.scan(in_set(b""), in_set(b"\xff")))) == 200


@pytest.mark.parametrize("order_rows_max", [50, 1000])
def test_a_group_larger_than_a_scan_may_hold_is_read_in_order_from_disk(
    tmp_path: Path, open_keys: OpenKeys, order_rows_max: int
) -> None:
    below = RocksStorage.open(tmp_path, config=Config(memtable_bytes=MiB), now_ms=0, encrypted=True)
    storage = EncryptedStorage(below, open_keys(KeysInMemory()), entropy=urandom, order_rows_max=order_rows_max)
    chunk = keys.object_rows(7, Kind.THREAD, "crew", "t") + b"D"
    rows = {chunk + number.to_bytes(32, "big"): bytes([number % 256]) * 8000 for number in range(300)}
    around: dict[bytes, bytes | None] = {chunk[:-1] + b"B": b"before", chunk[:-1] + b"E": b"after"}
    written(storage, {**rows, **around})
    expected = sorted({**rows, **around}.items())
    shown = storage.snapshot()
    for _ in range(2):
        assert list(storage.scan(chunk[:-1], chunk[:-1] + b"Z")) == expected
        assert list(storage.scan(chunk[:-1], chunk[:-1] + b"Z", reverse=True)) == expected[::-1]
        assert list(shown.scan(chunk[:-1], chunk[:-1] + b"Z")) == expected
        assert list(storage.scan(expected[100][0], expected[203][0], limit=7)) == expected[100:107]
    storage.close()


class Counting(MemoryStorage):
    """Counts the rows that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned = self.got = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.got += 1
        return super().get(key)

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(start, stop, reverse=reverse, limit=limit):
            self.scanned += 1
            yield row


def test_a_scan_holds_no_more_rows_of_a_group_than_it_may(sealed: Sealed, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = sealed(MemoryStorage(), order_rows_max=50)
    written(storage, {in_set(b"%03d" % number): b"" for number in range(300)})
    chosen: list[int] = []
    sound = ordering.Scanning._next_of

    def next_of(self: ordering.Scanning, entries: list[ordering.Entry], span: ordering._Span) -> list[ordering.Entry]:
        chosen.append(len(entries))
        return sound(self, entries, span)

    monkeypatch.setattr(ordering.Scanning, "_next_of", next_of)
    assert len(list(storage.scan(in_set(b""), in_set(b"\xff")))) == 300
    assert max(chosen) <= 100


def test_a_scan_holds_no_more_bytes_of_values_than_it_may(sealed: Sealed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "_HELD_BYTES_MAX", 1000)
    inner = Counting()
    storage = sealed(inner)
    written(storage, {in_set(b"%03d" % number): bytes(100) for number in range(30)})
    inner.got = 0
    assert len(list(storage.scan(in_set(b""), in_set(b"\xff")))) == 30
    assert inner.got == 20


def test_a_page_of_a_large_group_reads_what_it_shows(sealed: Sealed) -> None:
    inner = Counting()
    storage = sealed(inner)
    written(storage, {in_set(b"%03d" % number): b"" for number in range(500)})
    list(storage.scan(in_set(b""), in_set(b"\xff")))
    inner.scanned = inner.got = 0
    assert len(list(storage.scan(in_set(b"100"), in_set(b"\xff"), limit=10))) == 10
    assert inner.scanned + inner.got < 20


def test_the_orders_that_are_remembered_are_bounded() -> None:
    orders = ordering.Orders(100)
    for group in (b"a", b"b"):
        orders.remember(group, [(bytes([nth]), b"") for nth in range(70)])
    assert orders.find(b"a") is None
    assert orders.find(b"b") is not None
