"""Rights to spend: how a node draws them, requests them from another, and spreads them ahead of need.

Rights to spend: how a node gets them.

Laws:
- Rights are drawn from the pool, or from a past incarnation of this directory, in two steps: the draw is written, and
  then every owner is heard. If two nodes draw the same rights, at least one sees the other, because each wrote before it
  asked. A node that sees that too much was drawn puts it back. So only rights that were drawn once count.
- If all that drew at the same time put back, each draws again after a pause of its own: the order of their ids says how long.
- In the same way a directory that is an older copy of itself learns, from every owner, what it has forgotten, before it
  spends anything. It never spends from an account that it finds, only from that of this incarnation.
- `BudgetExhausted` is raised only after the linked owners were heard, because a grant may have been acknowledged elsewhere.
- If an owner cannot be reached, nothing is drawn, and a draw that was written is put back. Rights of another node can still
  be requested from it (`Replicas.seek`), because a transfer needs only its giver.
- While every owner can be reached, rights are spread ahead of need (`spread`, as `shoal.kinds.budget.state` says), so that a
  node that dies takes only its share with it.

docs/decisions/0024-rights-of-budgets.md says why rights belong to openings and why every owner is heard,
`shoal.kinds.budget.state` why they are spread.

Rights that one node requests from another: a question over their link, answered with a transfer.

Law: only the transfer counts, which is an operation like any other; the answer only says that it was made. So a
lost or late answer costs only one more question.

Spread rights to spend ahead of need, in the background: `Rights.spread` of each budget that changed.

Laws:
- A look takes a bounded number of budgets, `RIGHTS_SPREAD_S` after the last look. While no budget is due there is no task.
- A budget is due after any node's change of it, and while it waits for an owner that is away. At the start the budgets
  are due of which an earlier incarnation of this directory has rights.
- If spreading fails, it is dropped: spends work without it, and the next change makes the budget due again. Only what must be
  put back is tried again until it is, because no later change need come, and the pool is short of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from weakref import WeakValueDictionary

from shoal.cluster.messages import RightsReply, RightsRequest
from shoal.errors import BudgetExhausted, NoQuorum, RightsElsewhere, ShoalError
from shoal.kinds.budget import state as budget
from shoal.names import check_name
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Flows, Target, target_of
from shoal.node.replicas import Replicas
from shoal.node.turns import lasting
from shoal.protocol import requests
from shoal.storage.keys import Kind

RIGHTS_WAIT_S = 1.0  # For one peer's answer to a request for rights to spend, or for what it holds.
RIGHTS_COLLISIONS_MAX = 3  # So often a node draws rights again, because others drew them at the same time.
RIGHTS_SPREAD_S = 0.5  # Between two checks of how rights to spend are distributed over the nodes.
RIGHTS_SPREAD_MAX = 64  # Budgets in one such check.
RIGHTS_DUE_MAX = 65_536  # Budgets that wait for a check; beyond this, a budget is checked after its next change.

_CALLS_MAX = 4  # Calls that one error names.
_TURNS = 8  # In the time in which a peer answers: so many nodes draw one after the other.


class Rights:
    """Draws, requests and spreads the rights of this node. One draw of a budget is under way at a time."""

    def __init__(self, context: NodeContext, database: Database, *, replicas: Replicas) -> None:
        self._database = database
        self._commit = context.commit
        self._incarnation = context.incarnation
        self._replicas = replicas
        self._collisions_max = RIGHTS_COLLISIONS_MAX
        self._pause_s = RIGHTS_WAIT_S / _TURNS
        self.flows: Flows = {requests.DrawRights: self._draw_alone}
        self._locks: WeakValueDictionary[Target, asyncio.Lock] = WeakValueDictionary()

    async def provide(self, request: requests.AnyWrite) -> None:
        """Get the rights that a request's spends need, as far as possible. The spends then show whether that was enough."""
        wanted: dict[Target, int] = {}
        for write in request.writes if isinstance(request, requests.Batch) else [request]:
            if isinstance(write, requests.Spend):
                target = target_of(write)
                wanted[target] = wanted.get(target, 0) + write.amount
        for target, amount in wanted.items():
            async with self._lock(target):
                await self._provide(target, amount)
            if self._usable(target) < amount and self._can_draw(target) and not self._everyone:
                # Outside the lock, so that requests that wait for the same owners wait at the same time.
                with suppress(NoQuorum):
                    await self._replicas.reachable("all")
                    async with self._lock(target):
                        await self._provide(target, amount)

    async def gather(self, target: Target) -> None:
        """Draw all rights of past openings of this directory.

        Raises:
            ShoalError: that is not possible now; a draw that was written does not count.
        """
        async with self._lock(target):
            if self._database.budgets.over(self._database.document(target).rows):
                await self._draw(target, requests.DrawRights(target.space, target.name, 0))

    async def spread(self, target: Target) -> bool:
        """Get this node its share ahead of need; False if that must wait until every owner is linked.

        What a draw moved too much is put back first, if that has failed before: the pool lacks it until then.

        Raises:
            ShoalError: that is not possible now; a draw that was written does not count.
        """
        async with self._lock(target):
            if self.is_unsettled(target):
                await self._commit.wait_durable(self._put_back(target))
            amount = budget.to_draw(self._known(target))
            if amount is not None:
                await self._draw(target, requests.DrawRights(target.space, target.name, amount))
            asked, others = budget.to_ask(self._known(target))
            if asked:
                await self._commit.wait_durable(self._database.issuer.introduce())
                await self._replicas.seek(target, asked, others, spare=True)
            return self._everyone or not self._can_draw(target)

    def is_unsettled(self, target: Target) -> bool:
        """Whether a draw of this budget is under way, or was not put back because that failed."""
        return target in self._database.budgets.unsure

    def _known(self, target: Target) -> budget.Spread:
        rows = self._database.document(target).rows
        return self._database.budgets.spread(rows, target, self._replicas.linked, everyone=self._everyone)

    @property
    def _turn_s(self) -> float:
        own = self._incarnation.node
        return self._pause_s * (1 + sum(node < own for node in self._replicas.linked))

    @property
    def _everyone(self) -> bool:
        return len(self._replicas.linked) + 1 >= self._replicas.size

    async def _draw_alone(self, request: requests.DrawRights) -> requests.Rights:
        """Draw rights by request, and keep them here; the reply says how many were moved and can be spent now.

        Raises:
            NoQuorum: not every owner can be heard; nothing was drawn.
        """
        target = target_of(request)
        async with self._lock(target):
            before = self._usable(target)
            await self._draw(target, request)
            self._database.budgets.keep(target, request.amount)
            return requests.Rights(self._usable(target) - before, self._usable(target))

    def explained(
        self, error: BudgetExhausted | RightsElsewhere, targets: Sequence[Target]
    ) -> BudgetExhausted | RightsElsewhere:
        """The error of a rejected spend, with the nodes that have the rights and those that cannot be reached."""
        if isinstance(error, BudgetExhausted):
            return error
        name, amount, usable = (error.detail[part] for part in ("budget", "amount", "rights"))
        rows = self._database.document(next(target for target in targets if target.name == name)).rows
        members, pool = self._replicas.view().members, max(0, budget.pool(rows))
        away = [member.name for member in members if member.state == "unreachable"]
        names = {member.node: member.name for member in members} | {budget.REMOVED.hex(): "the account of removed nodes"}
        known = {member.node for member in members}  # One that was never reached may be any.
        held: dict[str, int] = {}
        left: dict[str, int] = {}  # By origin, as text: of directories that are no member's.
        for account in budget.accounts(rows):
            if account.rights > 0 and account.node.hex() not in known and all(known):
                left[account.origin.hex()] = account.rights
            holder = names.get(account.node.hex(), f"node {account.node.hex()[:8]}, which is not a member")
            if account.rights > 0 and holder != members[0].name:
                held[holder] = held.get(holder, 0) + account.rights
        text = (
            f"{members[0].name} may spend {usable} of budget {name!r}, but the spend is of {amount}. "
            f"{_told(held, pool, away)} Nothing was written. {_advice(away, left)}"
        )
        holders = [f"{name}: {rights}" for name, rights in held.items()]
        lost = [f"{origin}: {rights}" for origin, rights in left.items()]
        return RightsElsewhere(text, **{**error.detail, "pool": pool, "holders": holders, "unreachable": away, "left": lost})

    async def _provide(self, target: Target, amount: int) -> None:
        if self._usable(target) >= amount:
            return  # A request that held the lock before has got enough.
        if budget.remaining(self._database.document(target).rows) < amount:
            await self._replicas.heard(target.partition)  # More may have been granted elsewhere.
        with suppress(NoQuorum):
            draw = requests.DrawRights(target.space, target.name, amount, self._replicas.size)
            for again in range(self._collisions_max + 1):
                if again and self._may_draw(target, amount):
                    await asyncio.sleep(self._turn_s)  # Others drew at the same time, and all put back.
                if not self._may_draw(target, amount):
                    break
                await self._draw(target, draw)
        lacking = amount - self._usable(target)
        if lacking > 0 and self._replicas.size > 1:
            await self._commit.wait_durable(self._database.issuer.introduce())
            await self._replicas.seek(target, lacking, self._by_rights(target))

    async def _draw(self, target: Target, request: requests.DrawRights) -> None:
        await self._replicas.reachable("all")
        issued = self._database.issue(request, None)
        try:
            await self._commit.wait_durable(issued.number)
            await self._replicas.catch_up(target.partition, "all")
        except BaseException:
            with suppress(ShoalError):
                self._put_back(target)
            raise
        if self._database.budgets.sure(self._database.document(target).rows, target):
            await self._commit.wait_durable(self._put_back(target))

    def _put_back(self, target: Target) -> int:
        return self._database.issue(requests.ReleaseRights(target.space, target.name, 0, unsure=True), None).number

    def _may_draw(self, target: Target, amount: int) -> bool:
        return self._usable(target) < amount and self._can_draw(target) and self._everyone

    def _can_draw(self, target: Target) -> bool:
        rows = self._database.document(target).rows
        return budget.pool(rows) > 0 or bool(self._database.budgets.over(rows))

    def _usable(self, target: Target) -> int:
        return self._database.budgets.usable(self._database.document(target).rows, target)

    def _by_rights(self, target: Target) -> dict[bytes, int]:
        """The rights that each node is known to have."""
        found: dict[bytes, int] = {}
        for account in budget.accounts(self._database.document(target).rows):
            found[account.node] = found.get(account.node, 0) + account.rights
        return found

    def _lock(self, target: Target) -> asyncio.Lock:
        lock = self._locks.get(target)
        if lock is None:
            lock = self._locks[target] = asyncio.Lock()
        return lock


def _told(held: dict[str, int], pool: int, away: list[str]) -> str:
    """For people: where the rights are."""
    parts = [f"{name} has rights to {rights}{' and cannot be reached' * (name in away)}" for name, rights in held.items()]
    if pool:
        parts.append(f"{pool} are not drawn, which needs every owner")
    missing = [name for name in away if name not in held]
    if missing:
        parts.append(f"{', '.join(missing)} cannot be reached")
    return "; ".join(parts or ["no other node has rights to it"]) + "."


def _advice(away: list[str], left: Mapping[str, int]) -> str:
    """For people: how the spend can be made. `left`: the rights of directories that are no member's, by origin."""
    if left:
        # Most first: one of them is enough more often.
        origins = sorted(left, key=lambda origin: (-left[origin], origin))
        calls = " and ".join(f'draw({left[origin]}, reclaim="{origin}")' for origin in origins[:_CALLS_MAX])
        more = f", and so for {len(origins) - _CALLS_MAX} more that rights().holders lists" * (len(origins) > _CALLS_MAX)
        return (
            "Directories that are no member's have rights, as after a restore from a backup or once a disk was lost. If they "
            f"are not in use any more, take their rights: budget.{calls}{more}; shoal budget draw does the same (--reclaim)."
        )
    if not away:
        return "Try again in a second, or on a node that has enough."
    return (
        f"Spend less, or try again once {', '.join(away)} can be reached. If a disk is lost for good, take its rights back: "
        "budget.draw(amount, reclaim=origin)."
    )


class RightsRequests:
    """Both sides of rights requests.

    `send` sends a question to a node; `linked` returns the linked nodes, and whether these are all owners.
    """

    def __init__(
        self,
        context: NodeContext,
        database: Database,
        *,
        send: Callable[[bytes, RightsRequest], None],
        linked: Callable[[], tuple[frozenset[bytes], bool]],
    ) -> None:
        self._database = database
        self._linked = linked
        self._incarnation = context.incarnation
        self._send = send
        self._last_id = 0
        self._questions: dict[int, tuple[bytes, asyncio.Future[RightsReply]]] = {}  # Bounded by the requests under way.

    async def ask(self, node: bytes, target: Target, amount: int, *, spare: bool) -> RightsReply | None:
        """Ask a node for rights; None if it does not answer within `RIGHTS_WAIT_S`.

        This incarnation must have an origin that is durable.
        """
        assert self._incarnation.current is not None
        self._last_id += 1
        answer: asyncio.Future[RightsReply] = asyncio.get_running_loop().create_future()
        self._questions[self._last_id] = node, answer
        seek = RightsRequest(
            self._last_id, target.space, target.name, amount, self._incarnation.current, self._incarnation.node, spare
        )
        self._send(node, seek)
        try:
            async with asyncio.timeout(RIGHTS_WAIT_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[seek.id]

    def given(self, node: bytes, given: RightsReply) -> None:
        """Take a node's answer; one to an unknown or late question is ignored."""
        asked, answer = self._questions.get(given.id, (b"", None))
        if answer is not None and asked == node and not answer.done():
            answer.set_result(given)

    def answer(self, seek: RightsRequest) -> RightsReply:
        """Answer a question: transfer rights if this node can give any. An answer with 0 means that it gives none.

        Raises:
            InvalidName: the space or the budget has an illegal name.
        """
        check_name("space", seek.space)
        target = Target(Kind.BUDGET, seek.space, check_name("budget", seek.budget))
        amount = self._amount(seek, target)
        if not amount:
            return RightsReply(seek.id, 0, b"", 0)
        request = requests.TransferRights(seek.space, seek.budget, amount, seek.origin.hex(), seek.node.hex())
        try:
            reply = self._database.issue(request, None).reply
        except ShoalError:  # This node cannot write now, or the question is not valid.
            return RightsReply(seek.id, 0, b"", 0)
        assert isinstance(reply, requests.Rights)
        own = self._incarnation.current
        if not reply.moved or own is None:
            return RightsReply(seek.id, 0, b"", 0)
        return RightsReply(seek.id, reply.moved, own, self._database.vector(target)[own])

    def _amount(self, seek: RightsRequest, target: Target) -> int:
        rows = self._database.document(target).rows
        if not seek.spare:
            return budget.to_give_in_need(self._database.budgets.usable(rows, target), seek.amount)
        linked, everyone = self._linked()
        return budget.to_give(self._database.budgets.spread(rows, target, linked, everyone=everyone), seek.amount)


class Spreading:
    """The background task that spreads rights."""

    def __init__(self, database: Database, rights: Rights, *, replicas: Replicas) -> None:
        self._database = database
        self._rights = rights
        self._replicas = replicas
        self._due: dict[Target, None] = {}  # In the order in which they changed; at most `RIGHTS_DUE_MAX`.
        self._left: Iterator[Target] = iter(())  # Budgets in which earlier openings may have left rights.
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin with the rights of earlier openings, on the running loop. A store without peers has nothing to spread."""
        if self._replicas.size > 1:
            self._database.budgets.report_to(self._changed)
            self._left = self._database.catalog.all_of(Kind.BUDGET)
            self._stir()

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, target: Target) -> None:
        if len(self._due) < RIGHTS_DUE_MAX:
            self._due[target] = None
            self._stir()

    def _stir(self) -> None:
        if self._task is None and not self._stopped:
            self._task = lasting(self._run(), "exchange of rights of budgets")

    async def _run(self) -> None:
        try:
            while await self._find_left() or self._due:
                await asyncio.sleep(RIGHTS_SPREAD_S)
                await self._look()
        finally:
            self._task = None

    async def _find_left(self) -> bool:
        """Make the next budgets due in which earlier openings have rights; True if there may be more."""
        most = RIGHTS_SPREAD_MAX
        with suppress(ShoalError):  # A request for a damaged budget reports it.
            while some := list(islice(self._left, most)):
                found = [target for target in some if self._database.budgets.over(self._database.document(target).rows)]
                self._due.update(dict.fromkeys(found))
                if found:
                    return True
                await asyncio.sleep(0)
        return False

    async def _look(self) -> None:
        for target in list(islice(self._due, RIGHTS_SPREAD_MAX)):
            del self._due[target]
            again = False
            with suppress(ShoalError):
                again = not await self._rights.spread(target)
            if again or self._rights.is_unsettled(target):
                self._due[target] = None
            await asyncio.sleep(0)
