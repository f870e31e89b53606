from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from chaos.trials.powercut import power_cut, synced_wal_bytes, unsynced_parts
from shoal.errors import StorageError, StorageFull, StoreCorrupt
from shoal.storage import large
from shoal.storage.interface import LARGE_BYTES_MIN
from shoal.storage.large import Place
from shoal.storage.rocks import RocksStorage

OpenStore = Callable[[Path], RocksStorage]

random = Random(7)


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()


def value() -> bytes:
    return random.randbytes(LARGE_BYTES_MIN)


@contextmanager
def laying(storage: RocksStorage, *values: bytes) -> Iterator[None]:
    end = storage.begin_laying(values, digest_of)()
    yield
    end()


def put(storage: RocksStorage, *keys: bytes) -> list[bytes]:
    values = [value() for _ in keys]
    with laying(storage, *values):
        storage.write(dict(zip(keys, values, strict=True)))
    storage.sync()
    return values


def files(directory: Path) -> list[Path]:
    return sorted((directory / "db").glob("*.large"))


def holds(directory: Path, content: bytes) -> bool:
    return any(content in file.read_bytes() for file in (directory / "db").iterdir())


def erased(storage: RocksStorage, looks: int = 400) -> bool:
    storage.begin_erasing()
    return any(storage.erase(float(age)) for age in range(looks))


def test_a_value_that_was_laid_down_is_written_once(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    [content] = put(storage, b"a")
    assert files(tmp_path)[0].read_bytes() == content
    assert sum(content in file.read_bytes() for file in (tmp_path / "db").iterdir()) == 1
    assert storage.get(b"a") == content


def test_every_read_shows_the_value(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    [content] = put(storage, b"b")
    storage.write({b"a": b"1", b"c": b"3"})
    rows = [(b"a", b"1"), (b"b", content), (b"c", b"3")]
    assert list(storage.scan(b"", None)) == rows
    assert list(storage.scan(b"", None, reverse=True)) == rows[::-1]
    snapshot = storage.snapshot()
    assert list(snapshot.scan(b"", b"\xff")) == rows
    snapshot.close()


def test_the_next_opening_reads_it_and_writes_another_file(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    [content] = put(storage, b"a")
    storage.close()
    again = open_store(tmp_path)
    put(again, b"b")
    assert again.get(b"a") == content
    assert len(files(tmp_path)) == 2


def test_it_is_synced_before_it_can_be_written(tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_store(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(large, "_fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with laying(storage, value()):
        assert synced == [LARGE_BYTES_MIN]


def test_a_power_cut_while_it_is_laid_down_leaves_no_row(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_store(tmp_path / "live")
    [before] = put(storage, b"a")
    cuts: list[Path] = []

    def cut(_descriptor: int) -> None:
        power_cut(
            tmp_path / "live",
            tmp_path / "cut",
            synced_wal_bytes=lambda: synced_wal_bytes(storage),
            cut=max,
            unsynced=lambda: unsynced_parts(storage),
        )
        cuts.append(tmp_path / "cut")

    monkeypatch.setattr(large, "_fdatasync", cut)
    put(storage, b"b")
    survivor = open_store(cuts[0])
    assert list(survivor.scan(b"", None)) == [(b"a", before)]


def test_a_power_cut_after_the_write_loses_nothing(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path / "live")
    contents = put(storage, b"a", b"b")
    power_cut(
        tmp_path / "live",
        tmp_path / "cut",
        synced_wal_bytes=lambda: synced_wal_bytes(storage),
        cut=lambda least, _: least,
        unsynced=lambda: unsynced_parts(storage),
    )
    assert list(open_store(tmp_path / "cut").scan(b"", None)) == list(zip((b"a", b"b"), contents, strict=True))


def test_a_full_disk_refuses_what_is_laid_down(tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_store(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull, match="Writing large values"):
            storage.begin_laying([value()], digest_of)()
    with pytest.raises(StorageFull):
        storage.write({b"a": b""})
    assert storage.get(b"a") is None


def test_bytes_that_do_not_have_their_hash_raise(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    with files(tmp_path)[0].open("r+b") as file:
        file.seek(1000)
        file.write(b"damaged")
    with pytest.raises(StoreCorrupt, match="do not have their hash"):
        storage.get(b"a")
    with pytest.raises(StoreCorrupt):
        list(storage.scan(b"", None))


def test_a_file_that_is_missing_is_damage(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    storage.close()
    files(tmp_path)[0].unlink()
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        open_store(tmp_path).get(b"a")


@pytest.mark.parametrize(
    "content", [Place(1, 0, 10, bytes(32)).packed(), large.marked(b"x"), Place(1, 0, 10, bytes(32)).packed()[:8]]
)
def test_no_value_of_a_caller_is_taken_for_a_place(tmp_path: Path, open_store: OpenStore, content: bytes) -> None:
    storage = open_store(tmp_path)
    storage.write({b"a": content})
    assert storage.get(b"a") == content
    assert list(storage.scan(b"", None)) == [(b"a", content)]


def test_another_object_of_the_same_bytes_is_written_like_others(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    content = value()
    with laying(storage, content):
        storage.write({b"a": bytes(bytearray(content)), b"b": content, b"c": content})
    assert [storage.get(key) for key in (b"a", b"b", b"c")] == [content] * 3
    storage.write({b"c": None})
    storage.sync()
    assert erased(storage)
    assert [storage.get(key) for key in (b"a", b"b")] == [content] * 2, "a place belongs to one row"


def test_deleted_values_leave_no_byte(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    kept, gone = put(storage, b"kept", b"gone")
    storage.write({b"gone": None})
    storage.sync()
    assert erased(storage)
    assert not holds(tmp_path, gone[:1000])
    assert storage.get(b"kept") == kept
    storage.close()
    assert open_store(tmp_path).get(b"kept") == kept


def test_a_value_that_was_never_written_goes(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    content = value()
    with laying(storage, content):
        pass
    assert erased(storage)
    assert files(tmp_path) == []


def test_a_value_stays_until_it_is_written(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    content = value()
    with laying(storage, content):
        assert erased(storage)
        storage.write({b"a": content})
    assert storage.get(b"a") == content
    assert erased(storage)
    assert storage.get(b"a") == content


def test_a_snapshot_keeps_what_is_deleted(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    [content] = put(storage, b"a")
    snapshot = storage.snapshot()
    storage.write({b"a": None})
    storage.sync()
    assert not erased(storage, 5)
    assert list(snapshot.scan(b"", b"\xff")) == [(b"a", content)]
    snapshot.close()
    assert any(storage.erase(float(age)) for age in range(5, 400))
    assert files(tmp_path) == []


def test_a_later_snapshot_does_not_keep_a_file(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    storage.write({b"a": None})
    storage.sync()
    storage.begin_erasing()
    assert not storage.erase(0.0)
    snapshot = storage.snapshot()
    assert any(files(tmp_path) == [] or storage.erase(float(age)) for age in range(1, 5))
    snapshot.close()


def test_a_row_that_was_changed_since_does_not_follow(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    [(_, place)] = storage.named_in(1)
    storage.write({b"a": b"new"})
    storage.move([(b"a", place, place._replace(number=9))])
    assert storage.get(b"a") == b"new"


def test_nothing_moves_while_a_new_log_is_begun(tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    sync, moved = storage.sync, list[bool]()

    def synced() -> int:
        number = sync()
        mover = Thread(target=storage.move, args=([],))
        mover.start()
        mover.join(0.05)
        moved.append(not mover.is_alive())
        return number

    monkeypatch.setattr(storage, "sync", synced)
    storage.begin_erasing()
    assert moved == [False]


def test_little_garbage_stays_while_space_is_given_back(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, *[b"%d" % number for number in range(5)])
    storage.large.leave()
    storage.write({b"0": None})
    storage.reclaim()
    for _ in range(5):
        storage.write({b"x": b""})
        storage.sync()
        storage.write_witness()
    assert [path.name for path in files(tmp_path)] == ["00000001.large"]
    storage.write({b"1": None})
    storage.reclaim()
    for _ in range(5):
        storage.write({b"x": b""})
        storage.sync()
        storage.write_witness()
    assert [path.name for path in files(tmp_path)] == ["00000002.large"]
    assert len(list(storage.scan(b"2", b"5"))) == 3


def test_a_damaged_value_does_not_end_a_pass(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    [_, kept, _] = put(storage, b"a", b"b", b"c")
    with files(tmp_path)[0].open("r+b") as file:
        file.write(b"damaged")
    storage.write({b"c": None})
    storage.sync()
    assert erased(storage)
    assert storage.failed is None
    assert storage.get(b"b") == kept
    with pytest.raises(StoreCorrupt):
        storage.get(b"a")


def test_its_file_is_closed_to_others(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    assert stat.S_IMODE(files(tmp_path)[0].stat().st_mode) == 0o600


def test_a_new_file_is_begun_before_one_is_too_large(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "LARGE_FILE_BYTES", 2 * LARGE_BYTES_MIN)
    storage = open_store(tmp_path)
    contents = [put(storage, b"%d" % number)[0] for number in range(3)]
    assert [path.stat().st_size for path in files(tmp_path)] == [2 * LARGE_BYTES_MIN, LARGE_BYTES_MIN]
    assert [storage.get(b"%d" % number) for number in range(3)] == contents


def test_few_files_are_open_at_once(tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(large, "READERS_MAX", 2)
    storage = open_store(tmp_path)
    contents = [put(storage, b"%d" % number)[0] for number in range(4)]
    assert [storage.get(b"%d" % number) for number in range(4)] == contents
    assert len(storage.large._readers) == 2


def test_a_closed_store_says_so(tmp_path: Path, open_store: OpenStore) -> None:
    storage = open_store(tmp_path)
    put(storage, b"a")
    storage.close()
    with pytest.raises(StorageError, match="closed"):
        storage.get(b"a")
