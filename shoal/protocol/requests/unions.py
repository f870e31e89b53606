"""The unions of all requests and replies, by what they are to a node.

Each family says at its end which of its requests are writes that come alone (what may be in a batch is in
`batches`), which are reads of one object, and what answers them; here they are joined.
"""

from __future__ import annotations

from shoal.protocol.requests import (
    budgets,
    documents,
    indexes,
    items,
    journal,
    labels,
    listings,
    maps,
    presence,
    queues,
    retention,
    scalars,
    schemas,
    scrutiny,
    sets,
    status,
    steps,
    threads,
)
from shoal.protocol.requests.batches import Batch, BatchAnswer, BatchReply, BatchWrite
from shoal.protocol.requests.multireads import MultiRead, MultiReply

__all__ = ["AnyRead", "AnyReply", "AnyRequest", "AnyWrite", "ObjectRead", "SingleWrite", "WriteReply"]

SingleWrite = (
    BatchWrite
    | budgets.SingleWrite
    | documents.SingleWrite
    | indexes.SingleWrite
    | items.SingleWrite
    | journal.SingleWrite
    | retention.SingleWrite
    | schemas.SingleWrite
    | steps.SingleWrite
    | threads.SingleWrite
)
WriteReply = (
    BatchAnswer
    | budgets.WriteReply
    | documents.WriteReply
    | indexes.WriteReply
    | items.WriteReply
    | journal.WriteReply
    | retention.WriteReply
    | schemas.WriteReply
    | steps.WriteReply
    | threads.WriteReply
)
AnyWrite = SingleWrite | Batch
ObjectRead = (
    budgets.ObjectRead
    | documents.ObjectRead
    | indexes.ObjectRead
    | items.ObjectRead
    | journal.ObjectRead
    | labels.ObjectRead
    | maps.ObjectRead
    | queues.ObjectRead
    | retention.ObjectRead
    | scalars.ObjectRead
    | schemas.ObjectRead
    | scrutiny.ObjectRead
    | sets.ObjectRead
    | steps.ObjectRead
    | threads.ObjectRead
)
AnyRead = (
    ObjectRead
    | MultiRead
    | listings.ListThreads
    | listings.ListObjects
    | listings.ListSpaces
    | status.Status
    | status.Cluster
    | steps.CatchUp
    | presence.Announce
    | presence.ReadPresence
)
AnyRequest = AnyWrite | AnyRead | threads.Prune | retention.Trim
AnyReply = (
    WriteReply
    | BatchReply
    | MultiReply
    | budgets.ReadReply
    | documents.ReadReply
    | indexes.ReadReply
    | items.ReadReply
    | journal.ReadReply
    | labels.ReadReply
    | listings.ReadReply
    | maps.ReadReply
    | presence.ReadReply
    | queues.ReadReply
    | retention.ReadReply
    | scalars.ReadReply
    | schemas.ReadReply
    | scrutiny.ReadReply
    | sets.ReadReply
    | status.ReadReply
    | steps.ReadReply
    | threads.ReadReply
)
