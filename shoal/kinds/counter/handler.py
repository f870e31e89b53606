"""Counters over storage: adds."""

from __future__ import annotations

from shoal.config import Config
from shoal.errors import InvalidInput, KeyReused
from shoal.kinds.counter import state as counter
from shoal.names import check_key, check_name
from shoal.node.handler import Checks, Handler, Readers, View, WriteContext, Writers
from shoal.node.naming import expires
from shoal.protocol.requests import (
    Add,
    Added,
    CounterValue,
    ReadCounter,
)

AMOUNT_MAX = 2**63 - 1


class Counters:
    """The handler of counters."""

    def __init__(self) -> None:
        self.checks: Checks = {Add: self._check}
        self.writers: Writers = {Add: self._add}
        self.readers: Readers = {ReadCounter: self._read}

    def _check(self, request: Add) -> None:
        check_name("counter", request.counter)
        if request.key is not None:
            check_key("counter key", request.key)
        if not -AMOUNT_MAX <= request.amount <= AMOUNT_MAX:
            raise InvalidInput(f"an amount must fit 64 bits; got {request.amount}. Nothing was written.")

    def _add(self, context: WriteContext, request: Add) -> Added:
        """Add an amount; a repeated key adds once.

        Raises:
            KeyReused: the key was used with another amount.
            InvalidInput: the sum would not fit 64 bits.
        """
        rows, key = context.rows, request.key or context.implied_key
        # The table of answers may have forgotten a request's key that a user chose.
        if key is not None and not expires(key) and (amount := counter.find(rows, key)) is not None:
            if amount != request.amount:
                raise KeyReused(
                    f"key {request.key or context.key!r} has added {amount} to counter {request.counter!r}, not "
                    f"{request.amount}. Nothing was written. Use a new key for a new add."
                )
            return Added(value=counter.shown(counter.value(rows)), added=False)
        if counter.grows_too_large(counter.value(rows), request.amount):
            raise InvalidInput(
                f"counter {request.counter!r} would be above {counter.SHOWN_MAX:,}, or below its negative. Nothing was "
                "written.",
                field="amount",
            )
        context.apply(counter.Add(request.amount, key))
        return Added(value=counter.shown(counter.value(rows)), added=True)

    def _read(self, view: View, _request: ReadCounter) -> CounterValue:
        return CounterValue(counter.shown(counter.value(view.rows)))


def handler(_config: Config) -> Handler:
    """The handler of this kind, which needs nothing of a node beside its configuration."""
    return Counters()
