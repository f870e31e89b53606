"""Consumers over storage: acknowledgements, and how far behind each consumer is.

The progress of loops over storage.

Snapshots of reducers over storage: storing one, and finding the newest that a replay may begin with.
"""

from __future__ import annotations

from itertools import islice

from shoal import values
from shoal.config import Config
from shoal.crdt.dot import wall_ms_of
from shoal.errors import ConsumerReset, InvalidInput, NotFound, NotReady, TooLarge
from shoal.kinds.journal.state import journal, readers
from shoal.kinds.journal.state.events import EVENT
from shoal.kinds.journal.state.journal import Cursor
from shoal.kinds.journal.state.readers import Consumer
from shoal.names import check_key, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.naming import position_of
from shoal.protocol import requests
from shoal.protocol.requests import (
    Ack,
    ConsumerState,
    Place,
    PutSnapshot,
    ReachPlace,
    ReadConsumer,
    ReadConsumers,
    ReadPlace,
    ReadSnapshot,
    Snapshot,
    SnapshotKept,
)

JOURNAL_SCAN_ROWS_MAX = 20_000  # Events examined for one answer, so that a reader far behind does not delay others.
CONSUMERS_MAX = 256  # Consumers of one thread's journal.
REDUCERS_MAX = 64  # Reducers with snapshots of one thread's journal.
SNAPSHOT_BYTES_MAX = 4 * 1024 * 1024  # One snapshot of a reducer.
LOOPS_MAX = 1024  # Loops of one thread, with stored progress.


class Consumers:
    """The handler of a journal's consumers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Ack: self._check}
        self.writers: Writers = {Ack: self._ack}
        self.readers: Readers = {ReadConsumer: self._read, ReadConsumers: self._list}

    def _check(self, request: Ack) -> None:
        check_name("thread", request.thread)
        check_name("consumer", request.consumer)
        Cursor.unpack(request.cursor)
        if request.generation is not None and not 0 <= request.generation < readers.GENERATION_MAX:
            raise InvalidInput("a consumer's generation must come from an earlier answer. Nothing was written.")

    def _ack(self, context: WriteContext, request: Ack) -> ConsumerState:
        """Move a consumer's cursor forward, or reset it.

        Raises:
            ConsumerReset: the consumer was reset since; the acknowledged events may be due again.
            TooLarge: the journal has `CONSUMERS_MAX` consumers.
        """
        rows, stamp = context.rows, context.stamp
        before = readers.find_cursor(rows, request.consumer)
        if not request.reset and request.generation not in (None, before.generation):
            raise ConsumerReset(
                f"consumer {request.consumer!r} of {request.thread!r} was reset after this reader began. "
                "Nothing was written. Begin again from its cursor.",
                generation=before.generation,
            )
        self._bound(context, request)
        cursor = journal.clipped(Cursor.unpack(request.cursor), stamp.context)
        generation = before.generation + 1 if request.reset else before.generation
        if not request.reset and before.acked_ms and journal.join(before.cursor, cursor) == before.cursor:
            return _state(before)
        change = readers.Ack(request.consumer, generation, cursor.pack())
        context.apply(change)
        return _state(readers.find_cursor(rows, request.consumer))

    def _bound(self, context: WriteContext, request: Ack) -> None:
        if context.rows.get(readers.CONSUMER + request.consumer.encode()) is not None:
            return
        if sum(1 for _ in islice(readers.consumers(context.rows), CONSUMERS_MAX)) == CONSUMERS_MAX:
            raise TooLarge(
                f"the journal of {request.thread!r} has {CONSUMERS_MAX} consumers, which is the maximum. "
                "Nothing was written. Use one name for a service, not one for each of its processes."
            )

    def _read(self, view: View, request: ReadConsumer) -> ConsumerState:
        check_name("consumer", request.consumer)
        return self._behind(view, readers.find_cursor(view.rows, request.consumer), JOURNAL_SCAN_ROWS_MAX)[0]

    def _list(self, view: View, request: ReadConsumers) -> requests.Consumers:
        limit = min(max(1, request.limit), self._config.page_items_max)
        items: list[ConsumerState] = []
        left = JOURNAL_SCAN_ROWS_MAX
        for found in readers.consumers(view.rows, after=request.after):
            if len(items) == limit or (items and left <= 0):
                return requests.Consumers(items, more=True)
            item, scanned = self._behind(view, found, JOURNAL_SCAN_ROWS_MAX)
            items.append(item)
            left -= scanned
        return requests.Consumers(items, more=False)

    def _behind(self, view: View, found: Consumer, scan_rows_max: int) -> tuple[ConsumerState, int]:
        floor = view.floor_hlc(found.cursor.vector)
        behind, scanned, counted = journal.behind(
            view.rows, found.cursor, view.vector, floor_hlc=floor, scan_rows_max=scan_rows_max
        )
        return _state(found, behind=behind, counted=counted), scanned


def _state(found: Consumer, *, behind: int = 0, counted: bool = False) -> ConsumerState:
    return ConsumerState(found.name, found.generation, found.acked_ms, found.cursor.pack(), behind, counted)


class ProgressHandler:
    """The handler of `ReachPlace` and `ReadPlace`."""

    def __init__(self) -> None:
        self.checks: Checks = {ReachPlace: self._check}
        self.writers: Writers = {ReachPlace: self._reach}
        self.readers: Readers = {ReadPlace: self._read}

    def _check(self, request: ReachPlace) -> None:
        check_name("thread", request.thread)
        check_key("loop key", request.key)
        if not 0 <= request.place <= readers.NUMBER_MAX:
            raise InvalidInput(f"a place must be a number from 0; got {request.place}. Nothing was written.")

    def _reach(self, context: WriteContext, request: ReachPlace) -> Place:
        """Record how far a loop has come; a lower place changes nothing unless the loop restarts.

        Raises:
            TooLarge: `LOOPS_MAX` loops of this thread have stored progress.
        """
        before = readers.find_progress(context.rows, request.key)
        if not request.restart and request.place <= before.place:
            return Place(before.place)
        if before == readers.LoopProgress() and readers.count(context.rows, LOOPS_MAX) == LOOPS_MAX:
            raise TooLarge(
                f"{LOOPS_MAX} loops of thread {request.thread!r} have stored progress, which is the maximum. "
                "Nothing was written. Use the same key for a loop in every run."
            )
        change = readers.Reach(request.key, before.generation + request.restart, request.place)
        context.apply(change)
        return Place(request.place)

    def _read(self, view: View, request: ReadPlace) -> Place:
        check_key("loop key", request.key)
        return Place(readers.find_progress(view.rows, request.key).place)


class Reductions:
    """The handler of `PutSnapshot` and `ReadSnapshot`."""

    def __init__(self) -> None:
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
        if len(request.value) > SNAPSHOT_BYTES_MAX:
            raise TooLarge(
                f"a snapshot may have at most {SNAPSHOT_BYTES_MAX} bytes; this one has {len(request.value)}. "
                "Nothing was written."
            )

    def _put(self, context: WriteContext, request: PutSnapshot) -> SnapshotKept:
        """Store the snapshot after the event that the cursor ends at.

        Raises:
            NotFound: there is no such event here.
            NotReady: this replica lacks some of the events in the snapshot.
            TooLarge: `REDUCERS_MAX` reducers have snapshots of this journal.
        """
        rows, stamp = context.rows, context.stamp
        cursor = Cursor.unpack(request.cursor)
        assert cursor.sweep is not None  # As checked.
        position, vector = cursor.sweep.after, cursor.vector.join(cursor.sweep.target)
        if not stamp.context.accepts(vector):
            raise NotReady("this replica lacks some of the events in the snapshot. Nothing was written. Try again.")
        if rows.get(EVENT + position) is None:
            raise NotFound(f"the journal of {request.thread!r} has no event {position.hex()}. Nothing was written.")
        known = readers.reducers(rows)
        if request.reducer not in known and len(known) >= REDUCERS_MAX:
            raise TooLarge(
                f"{REDUCERS_MAX} reducers have snapshots of this journal, which is the maximum. Nothing was written."
            )
        change = readers.Reduce(request.reducer, request.version, position, vector.pack(), request.value)
        context.apply(change)
        return SnapshotKept(position.hex())

    def _read(self, view: View, request: ReadSnapshot) -> Snapshot:
        """The newest snapshot that covers only events that are held here, up to `until`; an empty one if there is none.

        Raises:
            InvalidInput: `until` is not an event's id.
        """
        _check_reducer(request.reducer, request.version)
        until = None if request.until is None else position_of(request.until)
        for found in readers.usable(view.rows, request.reducer, request.version, view.vector, until=until):
            # The HLC of an event is at or above its wall time, and so is that of its snapshot.
            if request.until_ms is not None and wall_ms_of(int.from_bytes(found.position[:8], "big")) > request.until_ms:
                continue
            floor = view.floor_hlc(found.vector)
            rows_max = JOURNAL_SCAN_ROWS_MAX
            if readers.holds(view.rows, found, view.vector, floor_hlc=floor, scan_rows_max=rows_max):
                after = journal.from_position(found.position, view.vector)
                return Snapshot(found.value, found.position.hex(), after.pack())
        return Snapshot(None, "", b"")


def _check_reducer(reducer: str, version: int) -> None:
    check_name("reducer", reducer)
    if not 0 <= version <= readers.VERSION_MAX:
        raise InvalidInput(f"a reducer's version must be a number from 0; got {version}. Nothing was written.")
