"""What a member says that lies with care: rows and records that are consistent with themselves, and false."""

from __future__ import annotations

from random import Random

import msgspec

from shoal.cluster import operation
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Change, Record, Removal
from shoal.cluster.operation import Tip, partition_of
from shoal.crdt.applier import What
from shoal.crdt.dot import HORIZON, Dot
from shoal.node.collection.entries import Garbage
from shoal.node.retired import Summary
from shoal.node.snapshots.switching import Row
from shoal.storage import keys

LIAR = "z"
LIE = b"LIES"
TOKEN = b"true"
SPACE = "crew"
THREADS = [f"t{number}" for number in range(3)]


def records(record: Record, target: str, directory: bytes, random: Random) -> list[Record]:
    """Records of later epochs, told to the member `target`: honest members are missing, or are removed."""
    gone = random.choice([address for address in record.members if address != f"{LIAR}:1"])
    rest, known = tuple(address for address in record.members if address != gone), {target: directory}
    removed = (Removal(gone, b"", record.epoch + 1, False),)
    rebuilt = epochs.REBUILD_AHEAD + random.randrange(epochs.REBUILD_AHEAD)
    return [
        Record(record.epoch + 1, record.members, {}, Change("forget", "", gone)),
        Record(record.epoch + 3, rest, {}, None, removed),
        Record(record.epoch + random.randrange(1, 9), (f"{LIAR}:1",), {}, None, removed),
        Record(record.epoch + 2, tuple(sorted((*rest, "x:1", "y:1"))), {}, None, removed),
        Record(rebuilt, tuple(sorted({target, f"{LIAR}:1"})), known),
        Record(rebuilt, record.members, known),
        Record(record.epoch + 1, record.members, {}, None, (Removal(target, directory, record.epoch + 1, False),)),
    ]


# ── rows of snapshots ─────────────────────────────────────────────────────────


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(dict(rows).items(), key=lambda row: (keys.PARTITION_TABLES.index(row[0][:1]), row[0]))


def _altered(rows: list[Row]) -> list[Row]:
    """Values of objects are others."""
    return [(key, value.replace(TOKEN, LIE) if key[:1] == keys.OBJECT else value) for key, value in rows]


def _truncated(rows: list[Row]) -> list[Row]:
    """The same, and all operations have left the log."""
    tips = [(keys.BASE + key[1:], value[: operation.TIP_BYTES]) for key, value in rows if key[:1] == keys.VECTOR]
    return _in_order([row for row in _altered(rows) if row[0][:1] not in (keys.LOG, keys.KEY)] + tips)


def _invented(rows: list[Row]) -> list[Row]:
    """The same, and it holds operations of an origin that nobody knows."""
    number = rows[0][0][1:3]
    hlc = max((Tip.unpack(value).hlc for key, value in rows if key[:1] == keys.VECTOR), default=1)
    fake = Tip(1, hlc, b"\x07" * 32).pack()
    made = [(table + number + bytes(range(16)), fake) for table in (keys.VECTOR, keys.BASE)]
    return _in_order([*_truncated(rows), *made])


def _emptied(rows: list[Row]) -> list[Row]:
    """Objects are missing."""
    return [row for row in rows if row[0][:1] not in (keys.OBJECT, keys.LISTED)]


def _to_be_swept(rows: list[Row]) -> list[Row]:
    """What is current waits to be swept."""
    logged = [Dot.unpack(key[3:27]) for key, _ in rows if key[:1] == keys.LOG]
    number = int.from_bytes(rows[0][0][1:3], "big")
    entries = [
        (keys.garbage(number, dot, 9), msgspec.msgpack.encode(Garbage(What.GENERATION, keys.Kind.THREAD, SPACE, thread, 0)))
        for dot in logged[:1]
        for thread in THREADS
        if partition_of(SPACE, thread) == number
    ]
    return _in_order([*rows, *entries])


def _forgetful(rows: list[Row]) -> list[Row]:
    """It has forgotten retired origins, which are later than anything."""
    number = int.from_bytes(rows[0][0][1:3], "big")
    kept = [row for row in rows if row[0][:1] not in (keys.VECTOR, keys.LOG, keys.KEY)]
    return _in_order([*kept, (keys.retired(number, HORIZON), Summary(horizon=1 << 60, forgotten_hlc=1 << 60).pack())])


SNAPSHOTS = {lie.__name__: lie for lie in (_altered, _truncated, _invented, _emptied, _to_be_swept, _forgetful)}
