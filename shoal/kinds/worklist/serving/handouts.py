"""Decide claims of items together: those of one node's clients, and on one node those of all nodes.

Three nodes that change one key of the quorum register at once are in each other's way: a ballot that is beaten costs two
rounds and a pause. So one node decides for all of them.

Laws:
- Claims of a worklist that ask at this node while a decision waits are decided with it, and claims that have ended are stored
  with it.
- If another node changed the worklist's key of the quorum register last, this node sends its claims there, and counts on what
  they get from when it sent them. If no answer comes within `LEASE_FORWARD_S`, it decides itself. A node decides whatever it
  is sent.
- An item that nobody waits for any more is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from shoal.errors import Overloaded, ShoalError, Unavailable
from shoal.kinds.lease.serving.leases import LEASE_GATHER_S, Leases
from shoal.kinds.lease.serving.shards import Shard, check_token, item_of
from shoal.kinds.lease.state import table
from shoal.kinds.lease.state.table import ITEM_BYTES, Claim, Decider, Grant, Group, Handed, HandedOut, HandOut, LeaseName, Table
from shoal.kinds.lease.state.wishes import CLAIMS_MAX, ENDED_MAX, ITEMS_MAX, Choice, Ended, Granted, Wishes
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.context import NodeContext
from shoal.node.turns import Background
from shoal.protocol.requests import Term
from shoal.records import NamedTuple

LEASE_FORWARD_S = 0.5  # How long a node waits for the one that decides on its claims. Then it decides itself.

_SPARE = 64  # Free items that are sent beyond one for each claim: others may have taken the first ones.
_QUESTIONS_MAX = 256  # Wishes whose answers are known when they come.
_SERVED_MAX = 64  # Wishes of others that are decided at once.

GroupOf = Callable[[bytes], Group]


class Worklist(NamedTuple):
    """A worklist, and its entries as this node has them now."""

    space: str
    mark: str
    items: Callable[[], Iterable[bytes]]
    group_of: GroupOf

    def name_of(self, item: bytes) -> LeaseName:
        """The lease that is a claim of an item."""
        return table.item_name(self.space, self.mark, item)


class _Gathered:
    """Claims that are decided together."""

    def __init__(self, worklist: Worklist) -> None:
        self.worklist = worklist
        self.claims: dict[bytes, Claim] = {}  # By their tokens.
        self.gone: dict[bytes, None] = {}  # Tokens of claims that nobody waits for any more.
        self.ended: list[Ended] = []
        self.told: asyncio.Future[dict[bytes, Handed]] = asyncio.get_running_loop().create_future()
        self.is_full = False


class _Question(NamedTuple):
    """Wishes that were sent."""

    space: str
    mark: str
    told: asyncio.Future[Granted]


class Handouts:
    """The grants to the claims of this node's clients. `heard` takes what peers send."""

    def __init__(self, context: NodeContext, leases: Leases, register: QuorumRegister) -> None:
        self.leases = leases
        self.handlers: dict[type[Any], Callable[[bytes, Any], None]] = {Wishes: self.heard, Granted: self.heard}
        self._register = register
        self._environment = context.environment
        self._config = context.config
        self._open: dict[tuple[str, str], _Gathered] = {}  # By space and mark: those that another claim can join.
        self._ended: dict[str, list[Ended]] = {}  # By key: what waits to be stored.
        self._questions: dict[int, _Question] = {}
        self._number = int.from_bytes(context.environment.entropy(4))
        self._serving = 0
        self._background = Background()

    async def hand_out(self, worklist: Worklist, claim: Claim) -> Handed | None:
        """Grant the claim of the first item of a worklist that nobody has; None: there is none.

        Raises:
            Overloaded: there is no room for another claim.
            NoQuorum, OutcomeUnknown: as the quorum register.
        """
        place = worklist.space, worklist.mark
        gathered = self._open.get(place)
        if gathered is None or len(gathered.claims) >= CLAIMS_MAX:
            gathered = self._open[place] = _Gathered(worklist)
            self._background.start(self._decide(gathered))
        gathered.claims[claim.token] = claim
        gathered.gone.pop(claim.token, None)
        try:
            handed = (await asyncio.shield(gathered.told)).get(claim.token)
        except asyncio.CancelledError:
            gathered.gone[claim.token] = None
            self._give_back(gathered)
            raise
        if handed is None and gathered.is_full:
            raise Overloaded(
                "there is no room for another claim of this worklist (quorum_register_value_bytes_max). Nothing was written. "
                "Try again when other claims have ended.",
                retry_after_s=self._config.lease_poll_s,
            )
        return handed

    def end(self, term: Term, *, gather_s: float | None = None) -> None:
        """End a claim whose item is finished: after this time, or with the next claim. If that fails, it ends by itself."""
        name, token = item_of(term), check_token(term.token)
        self.leases.end(name, term.fence)
        shard = self.leases.shard_of(name)
        ended = self._ended.setdefault(shard.key, [])
        if len(ended) < ENDED_MAX:
            ended.append(Ended(name.space, name.name, term.fence, token))
        if len(ended) == 1 or gather_s is not None:
            self._background.start(self._store_ended(shard, LEASE_GATHER_S if gather_s is None else gather_s))

    def waits_s(self, worklist: Worklist) -> float | None:
        """How long until an item may be free, as far as this node was told: 0 if one is, None if there is none."""
        shard = self._shard(worklist)
        leases = shard.glimpse()
        found: float | None = None
        for item in worklist.items():
            left_s = _left_s(shard, leases, worklist.name_of(item))
            found = left_s if found is None else min(found, left_s)
            if not found:
                break
        return found

    async def stirred(self, worklist: Worklist, timeout_s: float) -> None:
        """Return when claims of a worklist may have changed, or after this time."""
        await self._shard(worklist).stirred(timeout_s)

    async def close(self) -> None:
        """End the work that is under way."""
        await self._background.close()

    # ── decisions of this node ────────────────────────────────────────────────

    async def _decide(self, gathered: _Gathered) -> None:
        """Decide these claims, and tell what they got."""
        try:
            await asyncio.sleep(0)  # Others that ask in the same turn join.
            shard = self._shard(gathered.worklist)
            sent_s = self._environment.uptime()
            outcome = self._nothing(gathered) or await self._asked(shard, gathered)
            if outcome is None:
                decided = await shard.decide(lambda leases, turn: self._decided(shard, gathered, leases, turn))
                outcome, sent_s = decided
            found = dict(zip(gathered.claims, outcome.found, strict=True))
            for token, handed in found.items():
                if handed is not None and token not in gathered.gone:
                    self.leases.know(gathered.worklist.name_of(handed.item), handed.grant, sent_s)
            gathered.is_full = outcome.is_full
            gathered.told.set_result({token: handed for token, handed in found.items() if handed is not None})
            self._give_back(gathered)
        except BaseException as error:
            self._close(gathered)
            if not gathered.told.done():
                gathered.told.set_exception(error) if isinstance(error, ShoalError) else gathered.told.cancel()
            gathered.told.exception() if not gathered.told.cancelled() else None
            if not isinstance(error, ShoalError):
                raise

    def _nothing(self, gathered: _Gathered) -> HandedOut | None:
        """That these claims get nothing, if there is no item."""
        if next(iter(gathered.worklist.items()), None) is not None:
            return None
        self._close(gathered)
        return HandedOut([None] * len(gathered.claims), False)

    def _decided(self, shard: Shard, gathered: _Gathered, leases: Table, turn: Decider) -> HandedOut:
        self._close(gathered)
        gathered.ended += self._ended.pop(shard.key, ())
        for ended in gathered.ended:
            ended.drop(leases)
        worklist = gathered.worklist
        wanted = HandOut(worklist.space, worklist.mark, worklist.items(), list(gathered.claims.values()))
        return leases.hand_out(wanted, worklist.group_of, turn)

    def _close(self, gathered: _Gathered) -> None:
        """No other claim can join."""
        place = gathered.worklist.space, gathered.worklist.mark
        if self._open.get(place) is gathered:
            del self._open[place]

    async def _store_ended(self, shard: Shard, gather_s: float) -> None:
        await asyncio.sleep(gather_s)
        ended = self._ended.pop(shard.key, None)
        if not ended:
            return  # They were stored with a claim.
        if await self._ask(shard.key, Wishes(self._next(), shard.key, ended, "", "", [], [])) is not None:
            return

        def drop(leases: Table, turn: Decider) -> None:
            for each in ended:
                each.drop(leases)

        with suppress(ShoalError):
            await shard.decide(drop)

    def _give_back(self, gathered: _Gathered) -> None:
        """Release what was granted to claims that nobody waits for."""
        if gathered.told.done() and not gathered.told.cancelled() and gathered.told.exception() is None:
            for token in gathered.gone:
                handed = gathered.told.result().get(token)
                if handed is not None:
                    self._background.start(self._release(gathered.worklist.name_of(handed.item), handed.grant))

    async def _release(self, name: LeaseName, grant: Grant) -> None:
        with suppress(ShoalError):
            await self.leases.let_go(name, grant.fence, grant.claim.token)

    # ── decisions of others ───────────────────────────────────────────────────

    async def _asked(self, shard: Shard, gathered: _Gathered) -> HandedOut | None:
        """The grants to these claims by the node that decides; None if this node has to decide."""
        if self._register.proposer_of(shard.key) is None:
            return None
        self._close(gathered)
        worklist, claims = gathered.worklist, list(gathered.claims.values())
        gathered.ended = self._ended.pop(shard.key, [])
        for items, is_all in self._offers(shard, worklist, len(claims)):
            choices = [Choice(item[:ITEM_BYTES], *worklist.group_of(item)) for item in items]
            wishes = Wishes(self._next(), shard.key, gathered.ended, worklist.space, worklist.mark, choices, claims)
            answer = await self._ask(shard.key, wishes)
            if answer is None or len(answer.found) != len(claims):
                return None
            if is_all or answer.is_full or None not in answer.found:
                whole = {item[:ITEM_BYTES]: item for item in items}
                return HandedOut([each and Handed(whole[each.item], each.grant) for each in answer.found], answer.is_full)
        return None

    def _offers(self, shard: Shard, worklist: Worklist, claims: int) -> Iterator[tuple[list[bytes], bool]]:
        """The items to offer, and whether these are all: first some that are free, then as many as may be sent."""
        leases = shard.glimpse()
        free = (item for item in worklist.items() if not _left_s(shard, leases, worklist.name_of(item)))
        some = list(islice(free, min(claims + _SPARE, ITEMS_MAX)))
        if len(some) >= claims:
            yield some, False
        items = list(islice(worklist.items(), ITEMS_MAX + 1))
        yield items[:ITEMS_MAX], len(items) <= ITEMS_MAX

    async def _ask(self, key: str, wishes: Wishes) -> Granted | None:
        """The answer of the node that decides, if there is another one and it decides in time."""
        node = self._register.proposer_of(key)
        if node is None:
            return None
        question = _Question(wishes.space, wishes.mark, asyncio.get_running_loop().create_future())
        self._questions[wishes.number] = question
        if len(self._questions) > _QUESTIONS_MAX:
            del self._questions[next(iter(self._questions))]
        self._register.links.send(node, wishes)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASE_FORWARD_S):
                answer = await question.told
                return answer if answer.is_decided else None
        return None

    def _next(self) -> int:
        self._number += 1
        return self._number

    def heard(self, node: bytes, message: Wishes | Granted) -> None:
        """Take a message of a peer."""
        if isinstance(message, Granted):
            self._answered(message)
        elif self._serving < _SERVED_MAX:  # Else its sender decides itself.
            self._serving += 1
            self._background.start(self._serve(node, message))

    def _answered(self, answer: Granted) -> None:
        question = self._questions.pop(answer.number, None)
        if question is None:
            return
        if not question.told.done():
            question.told.set_result(answer)
            return
        for handed in answer.found:  # It is late: this node may have decided itself.
            name = LeaseName(question.space, "") if handed is None else table.item_name(*question[:2], handed.item)
            if handed is not None and not self.leases.knows(name, handed.grant.fence):
                self._background.start(self._release(name, handed.grant))

    async def _serve(self, node: bytes, wishes: Wishes) -> None:
        """Decide for another node."""
        shard, came_s = self.leases.shard_at(wishes.key), self._environment.uptime()

        def decide(leases: Table, turn: Decider) -> HandedOut:
            if self._environment.uptime() - came_s > LEASE_FORWARD_S / 2:
                raise Unavailable("this node did not decide in time. Nothing was written.")  # Its sender does it soon.
            return wishes.decide(leases, turn._replace(node=node))

        answer = Granted(wishes.number, is_decided=False)
        try:
            if shard is not None:
                outcome = (await shard.decide(decide)).outcome
                answer = Granted(wishes.number, True, outcome.found, outcome.is_full)
        except ShoalError:
            pass
        finally:
            self._serving -= 1
        self._register.links.send(node, answer)

    def _shard(self, worklist: Worklist) -> Shard:
        return self.leases.shard_of(worklist.name_of(b""))


def _left_s(shard: Shard, leases: Table | None, name: LeaseName) -> float:
    """How long until this item may be free, as far as this node was told."""
    grant = None if leases is None else leases.grants.get(name)
    return 0.0 if grant is None else max(0.0, shard.remaining_s(name, grant))
