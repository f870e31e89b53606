"""All families of requests, and lists and unions of their classes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from shoal.protocol.requests import audit, leases, listings, membership, presence, quotas, schemas, status, subscriptions
from shoal.protocol.requests.base import Reply, Request, reply_of
from shoal.protocol.requests.document import documents
from shoal.protocol.requests.items import indexes, items
from shoal.protocol.requests.thread import claims, journal, labels, queues, retention, scrutiny, steps, threads
from shoal.protocol.requests.values import budgets, deletions, maps, scalars, sets

FAMILIES = (
    audit,
    budgets,
    claims,
    deletions,
    documents,
    indexes,
    items,
    journal,
    labels,
    leases,
    listings,
    maps,
    membership,
    presence,
    queues,
    quotas,
    retention,
    scalars,
    schemas,
    scrutiny,
    sets,
    status,
    steps,
    subscriptions,
    threads,
)


def operations(base: type[Request[Any]] = Request, /) -> list[type[Request[Any]]]:
    """All request classes below a base class, in the order of their tags."""
    ours = [child for child in base.__subclasses__() if child.__module__.startswith(__package__)]
    found = [kind for child in ours for kind in (operations(child) if child.__subclasses__() else [child])]
    return sorted(found, key=lambda kind: str(kind.__struct_config__.tag))


def replies(kinds: Iterable[type[Request[Any]]], /) -> list[type[Reply]]:
    """The replies to these requests, each once."""
    return list(dict.fromkeys(map(reply_of, kinds)))


def union(kinds: Iterable[type], /) -> Any:
    """The union of these types, for a decoder."""
    return reduce(or_, kinds)
