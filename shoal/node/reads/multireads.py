"""Several reads as one, all at the same vector of their partition.

Laws:
- All are answered in one step of the event loop, so that no operation is applied in between.
- A read that fails is answered by its error; the others are answered all the same.
- Together they are bounded, in number and in bytes.
"""

from __future__ import annotations

import msgspec

from shoal.config import Config
from shoal.errors import ShoalError, SpansPartitions, StoreCorrupt, TooLarge
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.replicas import ReadRepair, Replicas
from shoal.node.target import Target, target_of
from shoal.protocol.requests import MultiRead, MultiReply, Refused
from shoal.protocol.requests.multireads import PartAnswer

_size = msgspec.msgpack.Encoder()


def targets_of(request: MultiRead, config: Config) -> list[Target]:
    """The objects that are read, one for each read.

    Raises:
        SpansPartitions: there is no read, or the objects are in several partitions.
        TooLarge: there are more than `multi_reads_max` reads.
        InvalidName: a name is not legal.
    """
    if not request.reads:
        raise SpansPartitions("a read of several objects must contain at least one read.")
    if len(request.reads) > config.multi_reads_max:
        raise TooLarge(f"one request holds at most {config.multi_reads_max} reads; this one has {len(request.reads)}.")
    targets = [target_of(read) for read in request.reads]
    for target in targets:
        check_name("space", target.space)
        check_name(target.kind.label, target.name)
    first = targets[0]
    for other in targets[1:]:
        if other.partition != first.partition:
            raise SpansPartitions(
                f"objects read at one vector must be in one partition: {first.kind.label} {first.name!r} and "
                f"{other.kind.label} {other.name!r} are not. Give their names a common tag, such as '{{crew-7}}/planner' and "
                "'{crew-7}/tokens', or use a colocated space; or read them one by one."
            )
    return targets


async def answered(
    request: MultiRead, targets: list[Target], database: Database, replicas: Replicas, config: Config
) -> MultiReply:
    """The replies to all reads. Damage that they meet is repaired first, and all are read again.

    Raises:
        TooLarge: the replies are larger than one message may be.
        StoreCorrupt: damage cannot be repaired.
    """
    repairs: dict[Target, ReadRepair] = {}
    while True:
        await database.prepare(zip(request.reads, targets, strict=True))
        damaged, error = targets[0], None
        replies: list[PartAnswer] = []
        size = 0
        for read, target in zip(request.reads, targets, strict=True):
            try:
                reply: PartAnswer = database.show(read, target)
            except StoreCorrupt as damage:
                damaged, error = target, damage
                break
            except ShoalError as refusal:
                reply = Refused(refusal.code, refusal.message, refusal.detail)
            size += len(_size.encode(reply))
            if size > config.request_bytes_max:
                raise TooLarge(
                    f"the answers of these {len(targets)} reads have more than {config.request_bytes_max} bytes. "
                    "Read fewer at once, or only some channels."
                )
            replies.append(reply)
        if error is None:
            return MultiReply(replies)
        repair = repairs.setdefault(damaged, replicas.read_repair(damaged))
        await repair.repair(error)
