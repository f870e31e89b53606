"""All families of requests, and lists and unions of their classes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from shoal.kinds.budget import requests as budgets
from shoal.kinds.counter import requests as counters
from shoal.kinds.document import requests as documents
from shoal.kinds.items import requests as items
from shoal.kinds.journal import requests as journal
from shoal.kinds.label import requests as labels
from shoal.kinds.lease import requests as leases
from shoal.kinds.list import requests as lists
from shoal.kinds.map import requests as maps
from shoal.kinds.presence import requests as presence
from shoal.kinds.register import requests as registers
from shoal.kinds.schema import requests as schemas
from shoal.kinds.set import requests as sets
from shoal.kinds.step import requests as steps
from shoal.kinds.thread import requests as threads
from shoal.kinds.worklist import requests as claims
from shoal.protocol.base import Reply, Request, reply_of
from shoal.protocol.requests import audit, deletions, membership, status, subscriptions

FAMILIES = (
    audit,
    budgets,
    claims,
    deletions,
    documents,
    items,
    journal,
    labels,
    leases,
    status,
    lists,
    maps,
    membership,
    presence,
    counters,
    registers,
    schemas,
    threads,
    sets,
    steps,
    subscriptions,
)


def operations(base: type[Request[Any]] = Request, /) -> list[type[Request[Any]]]:
    """All request classes below a base class, in the order of their tags."""
    ours = [child for child in base.__subclasses__() if child.__module__.startswith("shoal.")]
    found = [kind for child in ours for kind in (operations(child) if child.__subclasses__() else [child])]
    return sorted(found, key=lambda kind: str(kind.__struct_config__.tag))


def replies(kinds: Iterable[type[Request[Any]]], /) -> list[type[Reply]]:
    """The replies to these requests, each once."""
    return list(dict.fromkeys(map(reply_of, kinds)))


def union(kinds: Iterable[type], /) -> Any:
    """The union of these types, for a decoder."""
    return reduce(or_, kinds)
