"""Snapshots of reducers over storage: storing one, and finding the newest that a replay may begin with."""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt.clock import wall_ms_of
from shoal.errors import InvalidInput, NotFound, NotReady, TooLarge
from shoal.kinds.journal.state import journal, reductions
from shoal.kinds.journal.state.events import EVENT
from shoal.kinds.journal.state.journal import Cursor
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import position_of
from shoal.protocol.requests import PutSnapshot, ReadSnapshot, Snapshot, SnapshotKept


class Reductions:
    """The handler of `PutSnapshot` and `ReadSnapshot`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {PutSnapshot: self._check}
        self.writers: Writers = {PutSnapshot: self._put}
        self.readers: Readers = {ReadSnapshot: self._read}

    def _check(self, request: PutSnapshot) -> None:
        check_name("thread", request.thread)
        _check_reducer(request.reducer, request.version)
        cursor = Cursor.unpack(request.cursor)
        if cursor.sweep is None or cursor.sweep.after != cursor.greatest:
            raise InvalidInput(
                "a snapshot needs the cursor of an event that arrived in order; this event arrived late, or the "
                "cursor belongs to no event. "
                "Nothing was written. Read the journal from its start, or replay it."
            )
        values.check(request.value)
        if len(request.value) > self._config.snapshot_bytes_max:
            raise TooLarge(
                f"a snapshot may have at most {self._config.snapshot_bytes_max} bytes; this one has {len(request.value)}. "
                "Nothing was written."
            )

    def _put(self, context: WriteContext, request: PutSnapshot) -> SnapshotKept:
        """Store the snapshot after the event that the cursor ends at.

        Raises:
            NotFound: there is no such event here.
            NotReady: this replica lacks some of the events in the snapshot.
            TooLarge: `reducers_max` reducers have snapshots of this journal.
        """
        rows, stamp = context.rows, context.stamp
        cursor = Cursor.unpack(request.cursor)
        assert cursor.sweep is not None  # As checked.
        position, vector = cursor.sweep.after, cursor.vector.join(cursor.sweep.target)
        if not stamp.context.accepts(vector):
            raise NotReady("this replica lacks some of the events in the snapshot. Nothing was written. Try again.")
        if rows.get(EVENT + position) is None:
            raise NotFound(f"the journal of {request.thread!r} has no event {position.hex()}. Nothing was written.")
        known = reductions.reducers(rows)
        if request.reducer not in known and len(known) >= self._config.reducers_max:
            raise TooLarge(
                f"{self._config.reducers_max} reducers have snapshots of this journal, which is the maximum. Nothing "
                "was written."
            )
        change = reductions.Reduce(request.reducer, request.version, position, vector.pack(), request.value)
        context.apply(change)
        return SnapshotKept(position.hex())

    def _read(self, view: View, request: ReadSnapshot) -> Snapshot:
        """The newest snapshot that covers only events that are held here, up to `until`; an empty one if there is none.

        Raises:
            InvalidInput: `until` is not an event's id.
        """
        _check_reducer(request.reducer, request.version)
        until = None if request.until is None else position_of(request.until)
        for found in reductions.usable(view.rows, request.reducer, request.version, view.vector, until=until):
            # The HLC of an event is at or above its wall time, and so is that of its snapshot.
            if request.until_ms is not None and wall_ms_of(int.from_bytes(found.position[:8], "big")) > request.until_ms:
                continue
            floor = view.floor_hlc(found.vector)
            rows_max = self._config.journal_scan_rows_max
            if reductions.holds(view.rows, found, view.vector, floor_hlc=floor, scan_rows_max=rows_max):
                after = journal.from_position(found.position, view.vector)
                return Snapshot(found.value, found.position.hex(), after.pack())
        return Snapshot(None, "", b"")


def _check_reducer(reducer: str, version: int) -> None:
    check_name("reducer", reducer)
    if not 0 <= version <= reductions.VERSION_MAX:
        raise InvalidInput(f"a reducer's version must be a number from 0; got {version}. Nothing was written.")
