"""The quota of a space: what it may hold and do at each node, and what it holds there."""

from __future__ import annotations

from msgspec import Struct, field

from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, operation

__all__ = ["QUOTAS", "Quota", "QuotaView", "ReadQuota"]

QUOTAS = "quotas"
"""The map of the space `RESERVED` with the records: for each space, its limits by name, as a packed map.

A limit that a record lacks is that of the node's configuration. Names that a node does not know are left alone.
"""


class Quota(Struct, frozen=True):
    """A number for each thing that is limited. As a limit, 0 is none."""

    bytes: int = 0  # Of the rows of its objects, deleted ones included until they are swept.
    objects: int = 0  # Threads, documents, counters, registers, sets, maps, budgets, schemas, and first labels of items.
    writes_per_s: float = 0.0  # At each node; a batch counts each of its writes.
    watchers: int = 0  # Watches, and followers of presence, at each node.
    documents: int = 0  # Open documents at each node: mirrors, and one for all Yjs clients of a document.


@operation(family="quota", http=Http("GET", "/quota", "A space's quota, and what it uses"))
class ReadQuota(Read["QuotaView"], array_like=True, frozen=True, tag="quota"):
    """Read the quota of a space as the serving node applies it, and what the space uses there."""

    space: str


class QuotaView(Reply, array_like=True, frozen=True, tag="quota-view"):
    """The quota of a space at one node."""

    space: str
    limits: Quota  # In force; 0: no limit.
    used: Quota  # `writes_per_s`: in the last second.
    recorded: dict[str, float] = field(default_factory=dict)  # The limits that are recorded for the space itself.
    is_counted: bool = True  # False: bytes and objects are being counted, and what is told are those counted so far.
    trouble: str = ""  # What is wrong with the record; else empty. What is wrong counts as not recorded.
