"""Counters and registers over storage: what an add or an assignment decides."""

from __future__ import annotations

from shoal.config import Config
from shoal.crdt import counter, register
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import KeyReused, TooManySiblings
from shoal.node.decision import Decision
from shoal.node.mutation import NOTHING, implied_key
from shoal.protocol import requests


def add(rows: Rows, stamp: Stamp, request: requests.Add, *, key: str | None) -> Decision:
    """`key` is that of the whole request: it makes the add one where the request went to two nodes.

    Raises:
        KeyReused: the key is there with another amount.
    """
    if request.key is not None and (amount := counter.find(rows, request.key)) is not None:
        if amount != request.amount:
            raise KeyReused(
                f"key {request.key!r} has added {amount} to counter {request.counter!r}, not {request.amount}. "
                "Nothing was written. Use a new key for a new add."
            )
        return Decision.nothing(requests.Added(value=counter.value(rows), added=False))
    change = counter.Add(request.amount, request.key or implied_key(key, stamp.nth))
    counter.apply(rows, stamp, change)
    return Decision(change, NOTHING, requests.Added(value=counter.value(rows), added=True))


def assign(rows: Rows, stamp: Stamp, request: requests.Assign, config: Config, *, key: str | None) -> Decision:
    """
    Raises:
        TooManySiblings: the value would stand beside more than `siblings_max` others.
        InvalidValue: `context` is no context.
    """
    # The context always travels in the change, so that applying it needs nothing else.
    context = register.context_of(rows) if request.context is None else register.unpack_context(request.context)
    context = register.clipped(context, stamp.context)
    change = register.Assign(request.value, register.context_entries(context), implied_key(key, stamp.nth))
    register.apply(rows, stamp, change)
    siblings = len(register.siblings(rows))
    if siblings > config.siblings_max:
        raise TooManySiblings(
            f"register {request.register!r} would hold {siblings} concurrent values; {config.siblings_max} are allowed. "
            "Nothing was written. Read it, and set it with the context of that read."
        )
    context_after = register.pack_context(register.context_of(rows))
    return Decision(change, NOTHING, requests.Assigned(siblings=siblings, context=context_after))


def siblings(rows: Rows) -> requests.Siblings:
    found = [requests.Sibling(sibling.value, sibling.wall_ms) for sibling in register.siblings(rows)]
    return requests.Siblings(found, register.pack_context(register.context_of(rows)))
