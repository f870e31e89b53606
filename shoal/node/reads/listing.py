"""Threads by status and metadata.

Law: one page looks at no more than `listing_scan_max` threads, whatever it finds, and
says where the next one begins; so nobody waits for somebody's rare status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from shoal.cluster.partition import partition_of
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.crdt.thread import dag, status
from shoal.node.catalog import Catalog
from shoal.node.target import Target
from shoal.protocol.requests import ListThreads, ThreadNames
from shoal.storage.keys import Kind

_BRANCH = "main"
_metadata = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


class ListedThread(NamedTuple):
    reply: ThreadNames
    partitions: frozenset[int]  # Of the threads that were looked at.


def threads(catalog: Catalog, request: ListThreads, rows_of: Callable[[Target], Rows], config: Config) -> ListedThread:
    limit = min(max(1, request.limit), config.page_items_max)
    looked = catalog.names(
        request.space, Kind.THREAD, prefix=request.prefix, after=request.after, limit=config.listing_scan_max + 1
    )
    more = len(looked) > config.listing_scan_max
    names: list[str] = []
    seen: list[str] = []
    for name in looked[: config.listing_scan_max]:
        if len(names) == limit:
            more = True
            break
        seen.append(name)
        if _matches(rows_of(Target(Kind.THREAD, request.space, name)), request):
            names.append(name)
    reply = ThreadNames(names, seen[-1] if more and seen else "")
    return ListedThread(reply, frozenset(partition_of(request.space, name) for name in seen))


def _matches(rows: Rows, request: ListThreads) -> bool:
    if request.status:
        current = status.current(rows)
        if (current.status if current is not None else "running") != request.status:
            return False
    return not request.filter or _holds(rows, request.filter)


def _holds(rows: Rows, wanted: Mapping[str, bytes]) -> bool:
    heads = dag.heads(rows, _BRANCH)
    head = dag.checkpoint(rows, heads[0].id) if heads else None
    if head is None:
        return False
    try:
        metadata = _metadata.decode(head.record.metadata)
    except ValueError:  # Of a key that is no text.
        return False
    return all(name in metadata and bytes(metadata[name]) == packed for name, packed in wanted.items())
