"""Registers over storage: assignments, swaps, and their siblings."""

from __future__ import annotations

from collections.abc import Sequence

from shoal import values
from shoal.config import Config
from shoal.errors import LeaseLost, RegisterChanged, TooLarge, TooManySiblings, Unsupported
from shoal.kinds.register import state as register
from shoal.names import check_name
from shoal.node.handler import Checks, Handler, Readers, View, WriteContext, Writers
from shoal.node.naming import check_size, check_text
from shoal.protocol import requests
from shoal.protocol.requests import (
    NIL,
    Assign,
    Assigned,
    CompareAndSet,
    ReadRegister,
    ReadRegisterHistory,
    RegisterHistory,
    Siblings,
    Swap,
    Swapped,
    WasSet,
)
from shoal.values.forms import canonical
from shoal.values.work import Allowance

SIBLINGS_MAX = 32  # Concurrent values of one register.


class Registers:
    """The handler of registers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {Assign: self._check, CompareAndSet: self._check_compared, Swap: self._check_compared}
        self.writers: Writers = {Assign: self._assign, CompareAndSet: _refuse, Swap: self._swap}
        self.readers: Readers = {ReadRegister: self._read, ReadRegisterHistory: self._history}

    def _check(self, request: Assign | CompareAndSet | Swap) -> None:
        check_name("register", request.register)
        values.check(request.value)
        check_size(self._config, len(request.value), "a register's value")
        check_text(request.by, "an author")

    def _check_compared(self, request: CompareAndSet | Swap) -> None:
        self._check(request)
        values.check(request.expected)
        is_same(NIL, request.expected)
        check_size(self._config, len(request.expected), "an expected value")

    def _assign(self, context: WriteContext, request: Assign) -> Assigned:
        """Assign a value, which replaces the siblings that its context covers.

        Raises:
            RegisterChanged: `expect` is not its version here.
            TooManySiblings: the register would hold more than `SIBLINGS_MAX` concurrent values.
            InvalidValue: `context` is not a context from an earlier read.
        """
        rows, stamp = context.rows, context.stamp
        if request.expect is not None:
            check_expected(f"register {request.register!r}", request.expect, register.siblings(rows))
        if context.imported is not None and any(each.key == context.implied_key for each in register.entries(rows)):
            siblings = register.siblings(rows)
            return Assigned(len(siblings), register.pack_context(register.context_of(rows)), register.version_of(siblings))
        # The context always travels in the change, so that applying it needs nothing else.
        held = register.entries(rows)
        # What is imported was written without knowledge of what is here.
        replaced = held if context.imported is None else []
        seen = register.context_in(replaced) if request.context is None else register.unpack_context(request.context)
        seen = register.clipped(seen, stamp.context, held)
        change = register.AssignBy(request.value, register.context_entries(seen), context.implied_key, request.by)
        # A peer of the last release knows no history: it could not apply the change.
        known = context.is_known_to_peers(change)
        context.apply(change if known else register.Assign(change.value, change.context, change.key))
        live = register.entries(rows)
        siblings = register.siblings_of(live)
        if len(siblings) > SIBLINGS_MAX:
            raise TooManySiblings(
                f"register {request.register!r} would hold {len(siblings)} concurrent values; {SIBLINGS_MAX} are "
                "allowed. Nothing was written. Read it, then set it with the context of that read."
            )
        context_after = register.pack_context(register.context_in(live))
        version = register.version_of(siblings)
        return Assigned(siblings=len(siblings), context=context_after, version=version)

    def _swap(self, context: WriteContext, request: Swap) -> Swapped:
        """Assign a value if the latest one is the expected one. If not, and `settles`, assign the latest one again.

        So what is told of the register has the greatest number, and no swap of a smaller one that arrives later
        replaces it.

        Raises:
            LeaseLost: a swap of a greater number is known here.
        """
        rows, known = context.rows, register.fence(context.rows)
        if known.number >= request.fence + (not request.opens):
            raise LeaseLost(
                f"a later compare_and_set of register {request.register!r} has begun. Nothing was written. Try again.",
                fence=request.fence,
                holder="",
                known=known.number,
            )
        live = register.entries(rows)
        latest = next(iter(register.siblings_of(live, known.position)), None)
        if request.made:
            swapped = latest is not None and latest.name == _swap_key(request.made).encode()
        else:
            swapped = is_same(NIL if latest is None else latest.value, request.expected)
        value: bytes | None = request.value
        key = _swap_key(request.fence)
        if request.settles:
            value = None if latest is None else latest.value
            key = latest.name.decode() if latest is not None and latest.is_swap else key
        if request.settles or swapped:
            seen = register.clipped(register.context_in(live), context.stamp.context, live)
            by = None if request.settles else request.by
            context.apply(register.Swap(value, register.context_entries(seen), request.fence, key, by))
            live = register.entries(rows)
        packed = register.pack_context(register.context_in(live))
        shown = register.siblings_of(live)
        return Swapped(swapped, request.fence, shown[0].value if shown else NIL, packed, register.version_of(shown))

    def _read(self, view: View, _request: ReadRegister) -> Siblings:
        siblings = register.siblings(view.rows)
        found = [requests.Sibling(sibling.value, sibling.wall_ms) for sibling in siblings]
        return Siblings(found, register.pack_context(register.context_of(view.rows)), register.version_of(siblings))

    def _history(self, view: View, _request: ReadRegisterHistory) -> RegisterHistory:
        return RegisterHistory([_shown(noted) for noted in register.history(view.rows)])


def _shown(noted: register.NotedValue) -> requests.NotedValue:
    value, is_kept = (noted.value, True) if noted.value else (NIL, False)
    return requests.NotedValue(value, is_kept, noted.size, noted.by, noted.wall_ms, noted.position.hex())


def _refuse(context: WriteContext, request: CompareAndSet) -> WasSet:
    raise Unsupported(
        f"compare_and_set of register {request.register!r} takes a lease of its own, so it cannot be made under one. "
        "Nothing was written. Send it alone."
    )


def is_same(held: bytes, expected: bytes) -> bool:
    """Whether two packed values are equal. Those of more values than one request may compare are, if their bytes are.

    Raises:
        InvalidValue: one has no canonical form.
    """
    if held == expected:
        return True
    allowance = Allowance()
    try:
        allowance.charge_packed(held)
        allowance.charge_packed(expected)
    except TooLarge:
        return False
    return canonical(held) == canonical(expected)


def _swap_key(fence: int) -> str:
    """The key of a value that was set under this number; it stays when the value is written again."""
    return f"swap/{fence}"


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


def handler(config: Config) -> Handler:
    """The handler of this kind, which needs nothing of a node beside its configuration."""
    return Registers(config)
