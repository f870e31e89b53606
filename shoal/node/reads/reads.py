"""Answers every read of a node.

Laws:
- A read shows at least what its bookmark names, or raises a typed error; the bookmark includes what
  is shown before the answer is given. With `stale` a read shows what is here, and the bookmark goes back to that.
- A read is answered once everything that it shows is durable here, so that a crash cannot take it back. Only which chunks of a
  file are here is told before: a write that builds on them is a later one of the same log, and finds out if they went.
- Names are checked here, before anything else.
- Damaged rows are repaired first, and never shown.

Several reads as one, all at the same vector of their partition.

Laws:
- All are answered in one step of the event loop, so that no operation is applied in between.
- A read that fails is answered by its error; the others are answered all the same.
- Together they are bounded, in number and in bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.errors import ShoalError, SpansPartitions, StoreCorrupt, TooLarge
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.handler import Answers, Target, target_of
from shoal.node.replicas import ReadRepair, Replicas
from shoal.node.turns import in_turns
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, MultiRead, MultiReply, Refused
from shoal.protocol.requests.families import PartAnswer

MULTI_READS_MAX = 256  # Answered at one version vector.

_size = msgspec.msgpack.Encoder()


def targets_of(request: MultiRead) -> list[Target]:
    """The objects that are read, one for each read.

    Raises:
        SpansPartitions: there is no read, or the objects are in several partitions.
        TooLarge: there are more than `MULTI_READS_MAX` reads.
        InvalidName: a name is not legal.
    """
    if not request.reads:
        raise SpansPartitions("a read of several objects must contain at least one read.")
    if len(request.reads) > MULTI_READS_MAX:
        raise TooLarge(f"one request holds at most {MULTI_READS_MAX} reads; this one has {len(request.reads)}.")
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
        if damaged not in repairs:
            repairs[damaged] = database.chunks.repairing(damaged, replicas.read_repair)
        repair = repairs[damaged]
        await repair.repair(error)


class Reads:
    """The read path of one node."""

    def __init__(
        self,
        database: Database,
        *,
        replicas: Replicas,
        answers: Answers,
        config: Config,
    ) -> None:
        self._database = database
        self._replicas = replicas
        self._answers = answers
        self._config = config

    async def answer(self, request: requests.AnyRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        """Answer a read of any kind. `bookmark` is the session's, and grows by what the answer shows.

        Raises:
            SessionBehind, BookmarkLost: this node lacks what the bookmark names.
            ShoalError: as the data types say.
        """
        answer = self._answers.get(type(request))
        if answer is not None:
            return await answer(request, bookmark)
        if isinstance(request, requests.MultiRead):
            return await self._together(request, bookmark, stale=stale)
        assert isinstance(request, requests.ObjectRead)
        target = target_of(request)
        check_name("space", target.space)
        check_name(target.kind.label, target.name)
        if declaration_of(type(request)).foretells:
            return await self._foretold(request, target, bookmark, stale=stale)
        return await self._seen(lambda: self._shown(request, target), target, bookmark, stale=stale)

    async def _foretold(
        self, request: requests.ObjectRead[Any], target: Target, bookmark: Bookmark, *, stale: bool
    ) -> AnyReply:
        wanted = bookmark.vector(target.partition)
        if not stale and not self._database.holds(target.partition, wanted):
            await self._replicas.wait_applied(target.partition, wanted)
        self._database.partitions.load(target.partition).check_open()
        return (await self._shown(request, target))[0]

    async def _together(self, request: requests.MultiRead, bookmark: Bookmark, *, stale: bool) -> AnyReply:
        targets = targets_of(request)
        partition = targets[0].partition

        async def read() -> tuple[AnyReply, VersionVector]:
            reply = await answered(request, targets, self._database, self._replicas, self._config)
            return reply, self._database.vector_of(partition)

        return await self._seen(read, targets[0], bookmark, stale=stale)

    async def _seen(
        self, read: Callable[[], Awaitable[tuple[AnyReply, VersionVector]]], target: Target, bookmark: Bookmark, *, stale: bool
    ) -> AnyReply:
        """Wait until this node holds what the bookmark names, call `read`, and wait until what it shows is durable."""
        partition = target.partition
        wanted = bookmark.vector(partition)
        if not stale and not self._database.holds(partition, wanted):
            await self._replicas.wait_applied(partition, wanted)
        here = self._database.partitions.load(partition)
        here.check_open()
        try:
            reply, shown = await read()
        except ShoalError:
            here.check_open()
            raise
        here.check_open()  # It may have been replaced between two steps of the read.
        # The answer may be ahead of the disk; a crash must not take it back.
        await self._database.durable_of(partition, target.space)
        if stale and not shown.dominates(wanted):
            bookmark.replace(partition, shown)
        else:
            bookmark.note(partition, shown)
        return reply

    async def _shown(self, request: requests.ObjectRead[Any], target: Target) -> tuple[AnyReply, VersionVector]:
        """The answer of a read, and the vector at which it was read. Damage is repaired first."""
        repair: ReadRepair | None = None
        while True:
            try:
                await self._database.prepare([(request, target)])
                scan = self._database.scan(request, target)
                reply = self._database.show(request, target) if scan is None else await in_turns(scan)
                return reply, self._database.vector(target)
            except StoreCorrupt as error:
                repair = repair or self._database.chunks.repairing(target, self._replicas.read_repair)
                await repair.repair(error)
