"""What a part of the workload is, and what its acts have at hand.

Laws:
- A part has objects of its own, under names of its own; all agents share what it
  knows, as they share the world outside the cluster.
- What an act shows broken is said at once. The rest is judged in the end, on each node
  by itself, over what the clients were told and the losses spare. That nodes hold the
  same rows is judged for all parts together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, Protocol

from shoal.client.store import Space
from shoal.errors import ShoalError
from shoal.protocol.requests import Durability, Write
from shoal.protocol.session import Session
from simulation.judging.found import PART
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.plan import Act, ActKind
from simulation.workload.record import Record
from simulation.workload.writing import Writer
from simulation.world.client import Client

_COPIED = ("quorum", "all")

Deeds = Mapping[ActKind, Callable[[Act, Random], Awaitable[None]]]


class Told(NamedTuple):
    """An acknowledgement: how durable it is said to be, by whom, and when."""

    durability: Durability
    node: str
    at_s: float

    def is_owed(self, losses: Losses) -> bool:
        return losses.spare(self.durability, self.node, self.at_s)


class Ending(Protocol):
    """A deletion. `told` is None, and the end never, where the outcome is not known.

    The end is never, too, if the request may have left more than once: one node may have deleted what another
    node, which answered, did not find. That deletion spreads later, and ends what was begun after the answer.
    """

    session: str
    begun_s: float
    ended_s: float
    told: Told | None


def outlives(session: str, begun_s: float, told: Told, deletions: Sequence[Ending], losses: Losses) -> bool:
    """Whether no deletion can have ended the object's lifetime that a write, begun then and acknowledged so, belongs to.

    Either its own session made the last deletion before, and that knew of all others: they were over by then, and
    made by the same session, or answered by the same node. Another node that ends a lifetime at the same time ends
    the one that begins here too, under `local` without a word. Or all were acknowledged by copies before, and the
    write was: of any two quorums some node belongs to both.
    """
    if not deletions:
        return True
    if told.durability in _COPIED and all(
        each.told is not None and each.told.durability in _COPIED and each.told.is_owed(losses) and each.ended_s < begun_s
        for each in deletions
    ):
        return True
    last = max(deletions, key=lambda each: each.begun_s)
    return (
        last.session == session
        and last.ended_s <= begun_s
        and all(each is last or (each.ended_s < last.begun_s and _is_known(each, last, losses)) for each in deletions)
    )


def _is_known(earlier: Ending, last: Ending, losses: Losses) -> bool:
    """Whether the node that made the last deletion knew of an earlier one, which was over by then."""
    if earlier.session == last.session:
        return True
    return (
        earlier.told is not None
        and last.told is not None
        and earlier.told.node == last.told.node
        and earlier.told.is_owed(losses)
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """Of one agent and the objects of one name. `durability` is that of what does not name its own."""

    name: str
    client: Client
    space: Space
    writer: Writer
    record: Record
    durability: Durability

    def at(self, partition: int) -> Bench:
        """The same for writes of what stands in another partition than the objects of the name."""
        return replace(self, writer=self.writer.at(partition))

    def told(self, durability: Durability | None = None) -> Told:
        """Something has just been acknowledged: what is sent once more ends later, when its client may be with another node."""
        return Told(durability or self.durability, self.client.at, asyncio.get_running_loop().time())

    def violated(self, invariant: str, text: str) -> None:
        self.record.violated(invariant, f"{self.client.name}, {self.name} at {self.client.at}: {text}")

    def did(self, what: str) -> None:
        self.record.did(self.client.name, f"{what} of {self.name}")

    def refused(self, error: ShoalError) -> None:
        self.record.refused(self.client.name, self.name, error, self.client.at)

    async def send(
        self,
        act: Act,
        random: Random,
        request: Callable[[], Awaitable[None]],
        *,
        of: type[Write[Any]] | tuple[type[Write[Any]], ...],
        learn: Callable[[object], None] = lambda reply: None,
    ) -> bool:
        """Carry out a write, once more if the act says so; note what refuses it, and raise that.

        Returns whether it left once at most: it leaves on a link once, and the client may have dialled others meanwhile.

        Raises:
            ShoalError: as the request.
        """
        before = self.client.dialled - self.client.has_link
        await self.writer.write(act, random, [], request, of=of, learn=learn)
        return not act.repeat and self.client.dialled - before <= 1


class Part(Protocol):
    """`kinds` are its acts."""

    kinds: tuple[ActKind, ...]

    def deeds(self, bench: Bench) -> Deeds:
        """How one agent, without any position, carries out each kind of act."""
        ...

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        """What one node, healed, does not keep of what is owed."""
        ...

    def erased(self, losses: Losses) -> Collection[bytes]:
        """Whatever no disk may hold a row of, once all that was erased is swept: parts of keys."""
        ...


def name_of(family: str, name: str) -> str:
    return f"{PART}{family}/{name}"
