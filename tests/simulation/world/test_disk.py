"""Disks that lose, tear, fill and rot."""

from __future__ import annotations

import pytest

from shoal.cluster.operation import Tip
from shoal.crdt.dot import Origin
from shoal.errors import StorageFull, StoreCorrupt
from shoal.node.retired import Retirement
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.crash_points import CrashPoints
from simulation.world.disk import Disk, SimulatedDisk, is_truncated
from simulation.world.incarnation import Fenced, Incarnation
from simulation.world.trace import Trace

ROWS = {b"O%03d" % number: b"value" for number in range(60)}


class Machine:
    """A disk, and lives on it."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.points = CrashPoints()
        self.trace = Trace(lambda: 0.0)
        self.life = Incarnation("n1", 0)

    def mount(self) -> SimulatedDisk:
        self.life = Incarnation("n1", self.life.number + 1)
        return self.disk.mount(self.life, points=self.points, trace=self.trace)

    def after_crash(self, keep: int | None) -> dict[bytes, bytes]:
        self.disk.crash(keep)
        self.life.over = True
        return self.disk.rows()


def written(machine: Machine) -> SimulatedDisk:
    """One write that is synced, and three that are not."""
    storage = machine.mount()
    storage.write({b"a": b"1"})
    assert storage.sync() == 1
    for key in (b"b", b"c", b"d"):
        storage.write({key: b"1"})
    return storage


@pytest.mark.parametrize(("keep", "left"), [(0, b"a"), (1, b"ab"), (2, b"abc"), (None, b"abcd")])
def test_a_crash_leaves_what_was_synced_and_a_prefix_of_the_rest(keep: int | None, left: bytes) -> None:
    machine = Machine()
    written(machine)
    assert b"".join(machine.after_crash(keep)) == left


def test_a_life_begins_on_what_the_last_one_left() -> None:
    machine = Machine()
    written(machine)
    machine.after_crash(1)
    assert machine.mount().get(b"b") == b"1"


def test_a_dead_incarnation_reaches_nothing() -> None:
    machine = Machine()
    storage = written(machine)
    machine.after_crash(0)
    for door in (
        lambda: storage.get(b"a"),
        lambda: list(storage.scan(b"", None)),
        lambda: storage.write({b"z": b"1"}),
        storage.sync,
        storage.rotate_if_due,
        storage.write_witness,
        storage.bytes_on_disk,
        storage.bytes_free,
        storage.close,
    ):
        with pytest.raises(Fenced):
            door()
    assert b"z" not in machine.disk.rows()


def test_a_third_of_a_table_is_corrupt_and_the_rest_is_read() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write(ROWS | {b"L": b"elsewhere"})
    machine.disk.corrupt_rows(b"O")
    unreadable = set()
    for key in ROWS:
        try:
            assert storage.get(key) == b"value"
        except StoreCorrupt:
            unreadable.add(key)
    assert len(ROWS) / 6 < len(unreadable) < len(ROWS) / 2
    assert storage.get(b"L") == b"elsewhere"


def test_a_scan_that_meets_a_corrupt_row_raises() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write(ROWS)
    machine.disk.corrupt_rows(b"O")
    with pytest.raises(StoreCorrupt):
        list(storage.scan(b"O", b"P"))
    assert list(storage.scan(b"P", None)) == []


def test_a_row_that_is_written_again_can_be_read_again() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write(ROWS)
    machine.disk.corrupt_rows(b"O")
    storage.write(ROWS)
    assert len(list(storage.scan(b"O", b"P"))) == len(ROWS)


def test_corruption_outlives_a_crash_but_not_another_disk() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write(ROWS)
    storage.sync()
    machine.disk.corrupt_rows(b"O")
    machine.after_crash(0)
    with pytest.raises(StoreCorrupt):
        list(machine.mount().scan(b"O", b"P"))
    machine.disk.wipe()
    assert list(machine.mount().scan(b"", None)) == []


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_full_disk_takes_nothing_until_it_is_mounted_again(operation: str) -> None:
    machine = Machine()
    storage = machine.mount()
    machine.disk.fail_next("write" if operation == "write" else "sync")
    with pytest.raises(StorageFull):
        storage.write({b"a": b"1"})
        storage.sync()
    with pytest.raises(StorageFull):
        storage.write({b"b": b"1"})
    machine.after_crash(None)
    machine.mount().write({b"c": b"1"})


def test_an_older_copy_that_is_put_back_is_what_was_durable_then() -> None:
    machine = Machine()
    storage = written(machine)
    copy = machine.disk.copy()
    storage.sync()
    machine.after_crash(0)
    machine.disk.put_back(copy)
    assert list(machine.disk.rows()) == [b"a"]


def test_a_copy_may_be_put_back_twice() -> None:
    machine = Machine()
    written(machine)
    copy = machine.disk.copy()
    for _ in range(2):
        machine.disk.put_back(copy)
        machine.mount().write({b"new": b"1"})
    machine.disk.put_back(copy)
    assert list(machine.disk.rows()) == [b"a"]


def test_a_sync_passes_two_points_and_the_first_one_is_before_it() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write({b"a": b"1"})
    machine.points.arm("appended", 1, lambda: machine.disk.crash(0))
    with pytest.raises(Fenced):
        storage.sync()
    assert machine.disk.rows() == {}
    assert machine.points.counts == {"appended": 1}


def test_the_second_one_is_after_it() -> None:
    machine = Machine()
    storage = machine.mount()
    storage.write({b"a": b"1"})
    machine.points.arm("synced", 1, lambda: machine.disk.crash(0))
    with pytest.raises(Fenced):
        storage.sync()
    assert machine.disk.rows() == {b"a": b"1"}


@pytest.mark.parametrize(("nth", "kept"), [(1, 0), (2, 2)])
def test_a_write_of_a_snapshot_is_wholly_there_or_not_at_all(nth: int, kept: int) -> None:
    machine = Machine()
    storage = machine.mount()
    machine.points.arm("snapshot", nth, lambda: machine.disk.crash(None))
    with pytest.raises(Fenced):
        storage.write({b"Dsnapshot": b"1", b"Orow": b"1"})
    assert len(machine.disk.rows()) == kept


def test_a_crash_is_armed_for_the_nth_time_and_strikes_once() -> None:
    machine = Machine()
    struck: list[int] = []
    machine.points.arm("answered", 2, lambda: struck.append(1))
    machine.points.passed("answered")
    with pytest.raises(Fenced):
        machine.points.passed("answered")
    machine.points.passed("answered")
    assert struck == [1]
    assert machine.points.counts["answered"] == 3


def test_a_disarmed_point_does_not_strike() -> None:
    machine = Machine()
    machine.points.arm("answered", 1, lambda: pytest.fail("it struck"))
    machine.points.disarm()
    machine.points.passed("answered")


def test_a_watcher_is_told_when_a_disk_is_replaced() -> None:
    machine, told = Machine(), list[str]()

    class Watcher:
        def mounted(self, storage: object, /) -> None: ...

        def replaced(self) -> None:
            told.append("replaced")

        def wrote(self, rows: object, ranges: object, /) -> None: ...

        def synced(self) -> None: ...

    machine.disk.watchers.append(Watcher())
    written(machine)
    copy = machine.disk.copy()
    machine.after_crash(0)
    assert told == []
    machine.disk.put_back(copy)
    machine.disk.wipe()
    assert told == ["replaced", "replaced"]


def test_no_row_is_altered_of_a_store_that_was_closed() -> None:
    machine = Machine()
    storage = written(machine)
    assert machine.disk.alter(b"a")
    storage.close()
    assert not machine.disk.alter(b"a")
    assert machine.disk.rows()[b"a"] == b"0"


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_log_is_truncated_if_a_retired_origin_has_left_it(is_logged: bool) -> None:
    storage, origin = MemoryStorage(), Origin(b"o" * 16)
    storage.write({keys.retired(1, origin): Retirement(Tip(2, 5, b"c" * 32), 7, 7, is_logged).pack()})
    assert is_truncated(storage) is not is_logged
