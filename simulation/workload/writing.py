"""Sends a client's writes, some of them twice, and holds every answer to what must be so at once.

Laws:
- A request that is sent again is the same request with the same key, through a session
  that has seen the same and asks another node first. What became of either is noted.
- An answer is checked in the moment in which it comes: see `Ledger`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from shoal.client.watching import Change
from shoal.crdt.dot import Dot
from shoal.errors import ShoalError
from shoal.kinds.journal.state.events import dot_of
from shoal.protocol import requests
from shoal.protocol.requests import Durability, Write
from simulation.judging.history import Invoked
from simulation.judging.ledger import Ledger
from simulation.plan import Act
from simulation.workload.record import Record
from simulation.world.client import Client, Sender, Sent, Watched

AGAIN_S = 0.05
"""Within this time a client sends again what it has no answer to, or after it has failed."""


class Assurance:
    """What answers about one partition must keep to; `needed` says how many nodes a durability takes."""

    def __init__(self, partition: int, ledger: Ledger, needed: Callable[[Durability], int]) -> None:
        self._partition = partition
        self._ledger = ledger
        self._needed = needed
        self._has_forgone_sync = False

    def at(self, partition: int) -> Assurance:
        """The same of another partition: a node that answers about one need not hold yet what others showed of another."""
        other = Assurance(partition, self._ledger, self._needed)
        other._has_forgone_sync = self._has_forgone_sync
        return other

    def expect(self, durability: Durability) -> None:
        """Something of this durability is about to be written: after `memory`, what a client has seen need not be durable."""
        self._has_forgone_sync |= durability == "memory"

    def answered(self, client: Client, durability: Durability) -> None:
        """What the client has seen by now is durable on the node that answered it."""
        if not self._has_forgone_sync and durability != "memory":
            shown = client.session.bookmark.vector(self._partition)
            self._ledger.answered(client.at, self._partition, shown, who=client.name)

    def told(self, client: Client, change: Change, earlier: Sequence[str]) -> None:
        """A watch told the client of an event, after these."""
        self._ledger.told(change, earlier, who=client.name, node=client.at)

    def copied(self, sent: Sent | None, writes: Sequence[Invoked], reply: object, *, who: str, node: str) -> None:
        """What was acknowledged is durable on as many nodes as was asked."""
        if sent is not None and _found_nothing(reply):
            self._ledger.found_nothing(self._partition, sent.key, node)
        # Under a key of users another's operation may be what answers, though one of its own is, or was, somewhere too.
        if sent is not None and not _changed_nothing(sent.request, reply) and not any(write.key for write in writes):
            self._ledger.copied(self._partition, sent.key, self._needed(sent.durability), who=who, by=_shown(sent, reply))


def _found_nothing(reply: object) -> bool:
    """Whether there was nothing to remove."""
    match reply:
        case requests.Deleted(existed=done) | requests.ItemDeleted(deleted=done) | requests.EntryRemoved(removed=done):
            return not done
        case requests.BranchDeleted(before=before):
            return not before
    return False


def _changed_nothing(request: requests.AnyWrite, reply: object) -> bool:
    """Where nothing was to be done there may be no operation, though an earlier attempt made, or lost, one."""
    match reply:
        case requests.Deleted(existed=done) | requests.Begun(created=done):
            return not done
        case requests.Step(begun=begun) if isinstance(request, requests.BeginStep):
            return not begun  # It is done, or another's attempt is open.
        case requests.Enqueued(added=each):
            return not any(each)
        case requests.Dequeued(first=done) | requests.Purged(count=done):
            return not done
        case requests.Moved(before=before, heads=heads):
            return before == heads
        case requests.BranchDeleted(before=before):
            return not before
        case requests.EntryRemoved(removed=done) | requests.ItemDeleted(deleted=done) | requests.EventErased(erased=done):
            return not done
        case requests.ConsumerState():
            return True  # It may have been there already: the answer is the same.
        case requests.SetAltered(added=0, removed=0) | requests.Compacted(updates=0) | requests.ItemsIndexed(changed=[]):
            return True
    return False


def _shown(sent: Sent, reply: object) -> Dot | None:
    """The operation by which it is done, where the reply tells: of two that gave a step its result one counts."""
    if isinstance(sent.request, requests.EndStep) and isinstance(reply, requests.Step) and reply.result_position:
        return dot_of(bytes.fromhex(reply.result_position))
    return None


class Writer:
    """Of one client, for the objects of one name; `sender` is the session of its handles."""

    def __init__(self, client: Client, sender: Sender, record: Record, assurance: Assurance) -> None:
        self._client = client
        self._sender = sender
        self._record = record
        self.assurance = assurance

    def at(self, partition: int) -> Writer:
        """The same for what stands in another partition than the objects of the name."""
        return Writer(self._client, self._sender, self._record, self.assurance.at(partition))

    async def write(
        self,
        act: Act,
        random: Random,
        writes: Sequence[Invoked],
        send: Callable[[], Awaitable[None]],
        *,
        of: type[Write[Any]] | tuple[type[Write[Any]], ...] = Write,
        learn: Callable[[object], None] = lambda reply: None,
    ) -> Sent | None:
        """Send what is noted in `writes`, and note what came of it; once more, meanwhile or afterwards, if the act says so."""
        who = self._client.name
        with self._sender.watching(of) as watched:
            twin = asyncio.create_task(self._send_again(watched, writes, random, act.again_s)) if act.repeat else None
            try:
                await send()
            except ShoalError as error:
                self._record.failed(writes, error, who=who, node=self._client.at)
                raise
            else:
                self._record.acknowledged(writes, watched.reply, who=who, node=self._client.at)
                # A mirror sends a node what it lacks, and its edits with it: the answer covers less than the bookmark does.
                if of is not requests.Update:
                    self.assurance.answered(self._client, writes[0].durability if writes else "local")
                learn(watched.reply)
            finally:
                watched.end()
                if twin is not None:
                    await twin
        sent = watched.sent.result()
        if watched.reply is not None:  # A mirror may have sent its edits again, under another key.
            self.assurance.copied(sent, writes, watched.reply, who=who, node=self._client.at)
        return sent

    async def _send_again(self, watched: Watched, writes: Sequence[Invoked], random: Random, again_s: float) -> None:
        """Send the same request with its key through another session, as a client does that has no answer."""
        after = random.random() < 0.5
        sent = await watched.sent
        if sent is None:
            return
        if after:
            await watched.over.wait()
        await asyncio.sleep(again_s + random.uniform(0, AGAIN_S))
        # Which of its edits a mirror's update holds is known to the mirror alone: nothing is noted of it.
        noted = [] if isinstance(sent.request, requests.Update) else writes
        client = self._client.another(f"{self._client.name}'")
        self._record.resent(noted, client.name)
        try:
            reply = await client.session.call(sent.request, key=sent.key, durability=sent.durability)
        except ShoalError as error:
            self._record.failed(noted, error, who=client.name, node=client.at)
        else:
            self._record.acknowledged(noted, reply, who=client.name, node=client.at, again=True)
            self.assurance.copied(sent, writes, reply, who=client.name, node=client.at)
        finally:
            await client.session.close()
