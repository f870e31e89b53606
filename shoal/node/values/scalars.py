"""Counters and registers over storage: adds and assignments."""

from __future__ import annotations

from collections.abc import Sequence

from shoal import values
from shoal.config import Config
from shoal.crdt.values import counter, register
from shoal.errors import InvalidInput, KeyReused, RegisterChanged, TooManySiblings
from shoal.names import check_key, check_name
from shoal.node.checks import check_size
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.node.implied_keys import expires
from shoal.protocol import requests
from shoal.protocol.requests import Add, Added, Assign, Assigned, CounterValue, ReadCounter, ReadRegister, Siblings

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
        """
        rows, key = context.rows, request.key or context.implied_key
        # The table of answers may have forgotten a request's key that a user chose.
        if key is not None and not expires(key) and (amount := counter.find(rows, key)) is not None:
            if amount != request.amount:
                raise KeyReused(
                    f"key {request.key or context.key!r} has added {amount} to counter {request.counter!r}, not "
                    f"{request.amount}. Nothing was written. Use a new key for a new add."
                )
            return Added(value=counter.value(rows), added=False)
        context.apply(counter.Add(request.amount, key))
        return Added(value=counter.value(rows), added=True)

    def _read(self, view: View, _request: ReadCounter) -> CounterValue:
        return CounterValue(counter.value(view.rows))


class Registers:
    """The handler of registers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Assign: self._check}
        self.writers: Writers = {Assign: self._assign}
        self.readers: Readers = {ReadRegister: self._read}

    def _check(self, request: Assign) -> None:
        check_name("register", request.register)
        values.check(request.value)
        check_size(self._config, len(request.value), "a register's value")

    def _assign(self, context: WriteContext, request: Assign) -> Assigned:
        """Assign a value, which replaces the siblings that its context covers.

        Raises:
            RegisterChanged: `expect` is not its version here.
            TooManySiblings: the register would hold more than `siblings_max` concurrent values.
            InvalidValue: `context` is not a context from an earlier read.
        """
        rows, stamp = context.rows, context.stamp
        if request.expect is not None:
            check_expected(f"register {request.register!r}", request.expect, register.siblings(rows))
        # The context always travels in the change, so that applying it needs nothing else.
        seen = register.context_of(rows) if request.context is None else register.unpack_context(request.context)
        seen = register.clipped(seen, stamp.context, register.entries(rows))
        change = register.Assign(request.value, register.context_entries(seen), context.implied_key)
        context.apply(change)
        live = register.entries(rows)
        siblings = register.siblings_of(live)
        if len(siblings) > self._config.siblings_max:
            raise TooManySiblings(
                f"register {request.register!r} would hold {len(siblings)} concurrent values; {self._config.siblings_max} are "
                "allowed. Nothing was written. Read it, then set it with the context of that read."
            )
        context_after = register.pack_context(register.context_in(live))
        version = register.version_of(siblings)
        return Assigned(siblings=len(siblings), context=context_after, version=version)

    def _read(self, view: View, _request: ReadRegister) -> Siblings:
        siblings = register.siblings(view.rows)
        found = [requests.Sibling(sibling.value, sibling.wall_ms) for sibling in siblings]
        return Siblings(found, register.pack_context(register.context_of(view.rows)), register.version_of(siblings))


def check_expected(what: str, expected: str, siblings: Sequence[register.Sibling]) -> None:
    """Check the version of a register, which the error names as `what`; an empty `expected` means no value.

    Raises:
        RegisterChanged: these siblings have another version.
    """
    version = register.version_of(siblings)
    if expected != version:
        raise RegisterChanged(
            f"{what} {f'has version {version}' if version else 'has no value'} here, but "
            f"{f'version {expected}' if expected else 'no value'} was expected. Nothing was written. Read it again.",
            version=version,
        )
