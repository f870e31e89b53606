"""A partition is replaced by a snapshot only if nothing that is held here is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import BadOperation, ReadOnly
from shoal.node.snapshots import switching
from shoal.node.snapshots.receiving import SnapshotReceiver, Taken, _Staging
from shoal.node.snapshots.witnessing import Others, Owners
from shoal.storage import keys
from tests.node.snapshots.conftest import NUMBER, Filled
from tests.node.snapshots.test_checking import checked
from tests.node.snapshots.test_switching import pieces_of

BY = Taken("b:1", ["c:1"], 7)


class Transfers:
    """What the receiver tells of the snapshots that it takes."""

    def __init__(self) -> None:
        self.failures: list[int] = []

    def failed(self, number: int, _now: float) -> None:
        self.failures.append(number)

    def installed(self, _number: int) -> None:
        """The peer keeps nothing of it."""


def receiving(store: Filled, snapshots: Any) -> SnapshotReceiver:
    others = Others(
        owners=lambda: Owners([], 0, 0, [], [], learns=False),
        named=lambda peer: "a peer",
        is_removed=lambda peer: False,
        unsure=lambda _: (),
    )
    return SnapshotReceiver(
        replace(store.node._context, config=Config()),
        snapshots,
        store.node.service._database,
        witnesses=None,  # type: ignore[arg-type]
        others=others,
        send=lambda peer, request: None,
        installed=lambda number: None,
    )


@pytest.fixture
async def older(filled: Filled) -> Any:
    """A store that holds an operation of an origin that is not its own: that of an opening before."""
    first = Filled(2)
    await first.space.counter("n").add(1)
    again = Filled(3, first.storage.left_by_crash(None))
    await first.node.stop()
    yield again
    await again.node.stop()


async def test_a_snapshot_that_lacks_what_others_issued_is_refused(filled: Filled, older: Filled) -> None:
    receiver = receiving(older, Transfers())
    pieces = pieces_of(filled.rows())
    content = checked(pieces)
    partition = older.node.service._database.partitions.load(NUMBER)
    own = older.node._incarnation.current
    assert own is None or own not in partition.tips
    staging = _Staging(1, None, held=list(pieces), pieces=len(pieces))  # type: ignore[arg-type]
    with pytest.raises(BadOperation, match="lacks operation 1 of"):
        receiver._check(partition, staging, content)


async def test_a_partition_whose_switch_failed_stays_closed(
    filled: Filled, older: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Transfers()
    receiver = receiving(older, taken)
    pieces = pieces_of(filled.rows())
    content = checked(pieces)
    monkeypatch.setattr(receiver, "_check", lambda *_: None)
    sound = receiver._write

    def write(made: switching.Write) -> None:
        if not any(key.startswith(switching._MARKER) and value for key, value in made.rows.items()):
            raise ReadOnly("the disk failed. Nothing was written.")
        sound(made)

    monkeypatch.setattr(receiver, "_write", write)
    staging = _Staging(1, None, pieces=len(pieces), is_on_disk=True)  # type: ignore[arg-type]
    await receiver._replace(b"p" * 16, NUMBER, staging, content, BY)
    assert older.node.service._database.partitions.load(NUMBER).closed
    assert taken.failures == []


async def test_a_partition_is_closed_before_a_snapshot_is_compared_with_it(
    filled: Filled, older: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receiving(older, Transfers())
    pieces = pieces_of(filled.rows())
    partitions = older.node.service._database.partitions
    closed: list[bool] = []

    def check(*_: object) -> None:
        closed.append(partitions.load(NUMBER).closed)
        raise BadOperation("it is not used.", reason="snapshot")

    monkeypatch.setattr(receiver, "_check", check)
    staging = _Staging(1, None, held=list(pieces), pieces=len(pieces))  # type: ignore[arg-type]
    await receiver._replace(b"p" * 16, NUMBER, staging, checked(pieces), BY)
    assert closed == [True]
    assert not partitions.load(NUMBER).closed


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_with_the_new_rows_it_is_written_from_whom_they_came(
    filled: Filled, older: Filled, monkeypatch: pytest.MonkeyPatch, is_on_disk: bool
) -> None:
    receiver = receiving(older, Transfers())
    pieces = pieces_of(filled.rows())
    monkeypatch.setattr(receiver, "_check", lambda *_: None)
    staging = _Staging(1, None, held=list(pieces), pieces=len(pieces), is_on_disk=is_on_disk)  # type: ignore[arg-type]
    if is_on_disk:
        receiver._write(
            switching.Write({keys.staged(NUMBER, nth): switching.pack(each) for nth, each in enumerate(pieces)}, [])
        )
    await receiver._replace(b"p" * 16, NUMBER, staging, checked(pieces), BY)
    [(key, value)] = BY.row(NUMBER).items()
    assert older.storage.get(key) == value
