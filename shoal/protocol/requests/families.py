"""All families of requests, and lists and unions of their classes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any

from shoal.kinds import modules
from shoal.protocol.base import Reply, Request, reply_of
from shoal.protocol.requests import audit, backup, conditions, membership, overviews, status, subscriptions, usage

_OWN = (audit, backup, conditions, membership, overviews, status, subscriptions, usage)
FAMILIES = (*(module for _, module in modules("requests")), *_OWN)


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
