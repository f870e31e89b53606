"""Consumers over storage: acknowledgements, and how far behind each consumer is."""

from __future__ import annotations

from itertools import islice

from shoal.config import Config
from shoal.errors import ConsumerReset, InvalidInput, TooLarge
from shoal.kinds.journal.state import consumers, journal
from shoal.kinds.journal.state.consumers import Consumer
from shoal.kinds.journal.state.journal import Cursor
from shoal.names import check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.protocol import requests
from shoal.protocol.requests import Ack, ConsumerState, ReadConsumer, ReadConsumers


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
        if request.generation is not None and not 0 <= request.generation < consumers.GENERATION_MAX:
            raise InvalidInput("a consumer's generation must come from an earlier answer. Nothing was written.")

    def _ack(self, context: WriteContext, request: Ack) -> ConsumerState:
        """Move a consumer's cursor forward, or reset it.

        Raises:
            ConsumerReset: the consumer was reset since; the acknowledged events may be due again.
            TooLarge: the journal has `consumers_max` consumers.
        """
        rows, stamp = context.rows, context.stamp
        before = consumers.find(rows, request.consumer)
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
        change = consumers.Ack(request.consumer, generation, cursor.pack())
        context.apply(change)
        return _state(consumers.find(rows, request.consumer))

    def _bound(self, context: WriteContext, request: Ack) -> None:
        if context.rows.get(consumers.CONSUMER + request.consumer.encode()) is not None:
            return
        if sum(1 for _ in islice(consumers.consumers(context.rows), self._config.consumers_max)) == self._config.consumers_max:
            raise TooLarge(
                f"the journal of {request.thread!r} has {self._config.consumers_max} consumers, which is the maximum. "
                "Nothing was written. Use one name for a service, not one for each of its processes."
            )

    def _read(self, view: View, request: ReadConsumer) -> ConsumerState:
        check_name("consumer", request.consumer)
        return self._behind(view, consumers.find(view.rows, request.consumer), self._config.journal_scan_rows_max)[0]

    def _list(self, view: View, request: ReadConsumers) -> requests.Consumers:
        limit = min(max(1, request.limit), self._config.page_items_max)
        items: list[ConsumerState] = []
        left = self._config.journal_scan_rows_max
        for found in consumers.consumers(view.rows, after=request.after):
            if len(items) == limit or (items and left <= 0):
                return requests.Consumers(items, more=True)
            item, scanned = self._behind(view, found, self._config.journal_scan_rows_max)
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
