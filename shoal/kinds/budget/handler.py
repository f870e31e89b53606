"""Budgets over storage: grants, spends, and moves of rights.

Laws:
- A spend takes from the account of this incarnation, and never more than the account holds on this replica
  minus the draws that are still unsure (`unsure`): a draw counts once every owner was heard after it.
- Unsure draws are kept only in memory, because an account belongs to one incarnation; the next one draws again.
- The key of a spend is looked up before its rights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

from shoal.crdt.deletion import users_key
from shoal.crdt.dot import ORIGIN_BYTES, Origin
from shoal.crdt.rows import Rows
from shoal.errors import BudgetExhausted, InvalidInput, KeyReused, RightsElsewhere
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.course import Courses
from shoal.kinds.counter import state as counter
from shoal.names import check_key, check_name
from shoal.node.handler import Applied, Checks, Memory, Place, Readers, Target, View, WriteContext, Writers
from shoal.node.incarnation import Incarnation
from shoal.node.naming import expires, of_hex
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.protocol.requests import (
    BudgetCourse,
    BudgetState,
    DrawRights,
    Grant,
    Granted,
    InheritRights,
    ReadBudget,
    ReadBudgetCourse,
    ReleaseRights,
    Spend,
    Spent,
    TransferRights,
)
from shoal.records import NamedTuple

RIGHTS_KEPT_MAX = 65_536  # Budgets for which a node remembers how much was drawn by request.

AMOUNT_MAX = 2**63 - 1
_RETRY_S = 1.0
_LISTED_MAX = 1000  # Holders, those with the most first; more exist only if as many disks were lost.


class Drawn(NamedTuple):
    """Rights that this incarnation drew from an account or the pool, and that may have been drawn elsewhere as well."""

    source: bytes
    amount: int
    holder: bytes = b""  # The node of the source, if that is an account.


class Budgets(Memory):
    """The handler of budgets, with the rights that this incarnation may spend.

    `unsure` holds the unsure draws. `inherited` tells, of a partition, the origins of removed directories whose heir this node
    is now.
    """

    is_within = True

    def __init__(
        self, incarnation: Incarnation, courses: Courses, *, inherited: Callable[[int], Callable[[Origin], bool]]
    ) -> None:
        self._incarnation = incarnation
        self.courses = courses
        self._told: list[Callable[[Target], None]] = [courses.changed]
        self._inherited = inherited
        self._kept: dict[Target, int] = {}  # Rights drawn by request, which stay here until they are spent or released.
        self._kept_max = RIGHTS_KEPT_MAX
        self.unsure: defaultdict[Target, list[Drawn]] = defaultdict(list)  # One draw of a budget is under way at a time.
        self.checks: Checks = {
            Grant: self._check_amount,
            Spend: self._check_amount,
            DrawRights: self._check_draw,
            ReleaseRights: self._check_release,
            TransferRights: self._check_transfer,
            InheritRights: _check_name,
        }
        self.writers: Writers = {
            Grant: self._grant,
            Spend: self._spend,
            DrawRights: self._draw,
            ReleaseRights: self._release,
            TransferRights: self._transfer,
            InheritRights: self._inherit,
        }
        self.readers: Readers = {ReadBudget: self._read, ReadBudgetCourse: self._course}

    # ── checks ────────────────────────────────────────────────────────────────

    def _check_amount(self, request: Grant | Spend) -> None:
        check_name("budget", request.budget)
        if request.key is not None:
            check_key("budget key", request.key)
        _check_bounds(request.amount, least=1)

    def _check_draw(self, request: DrawRights) -> None:
        check_name("budget", request.budget)
        _check_bounds(request.amount, least=0)
        _check_bounds(request.shares, least=0)
        if request.reclaimed:
            _unhexed(request.reclaimed)

    def _check_release(self, request: ReleaseRights) -> None:
        check_name("budget", request.budget)
        _check_bounds(request.amount, least=0)

    def _check_transfer(self, request: TransferRights) -> None:
        check_name("budget", request.budget)
        _check_bounds(request.amount, least=1)
        _unhexed(request.to)
        _unhexed(request.node)

    # ── writes ────────────────────────────────────────────────────────────────

    def _grant(self, context: WriteContext, request: Grant) -> Granted:
        """Add to the budget; a repeated key adds once.

        Raises:
            KeyReused: the key was used with another amount.
        """
        if _is_known(context, budget.grants(context.rows), request, "granted"):
            return Granted(counter.shown(budget.remaining(context.rows)), granted=False)
        if counter.grows_too_large(counter.value(budget.grants(context.rows)), request.amount):
            raise InvalidInput(
                f"more than {counter.SHOWN_MAX:,} would be granted to budget {request.budget!r} in all. Nothing was written.",
                field="amount",
            )
        change = budget.Grant(request.amount, request.key or context.implied_key)
        context.apply(change)
        self.changes(context.transaction, context.target)
        return Granted(counter.shown(budget.remaining(context.rows)), granted=True)

    def _spend(self, context: WriteContext, request: Spend) -> Spent:
        """Spend from this node's rights; a repeated key spends once.

        Raises:
            KeyReused: the key was used with another amount.
            BudgetExhausted: the whole budget has less left.
            RightsElsewhere: this node has fewer rights, but the whole budget has enough left.
        """
        rows, target, own = context.rows, context.target, context.stamp.dot.origin
        if _is_known(context, budget.spends(rows), request, "spent"):
            return Spent(counter.shown(budget.remaining(rows)), counter.shown(self._usable(rows, target, own)), spent=False)
        usable, remaining = self._usable(rows, target, own), budget.remaining(rows)
        if request.amount > usable:
            raise _exhausted(request, remaining) if request.amount > remaining else _elsewhere(request, rows, usable)
        change = budget.Spend(request.amount, self._incarnation.node, request.key or context.implied_key)
        context.apply(change)
        self.changes(context.transaction, target)
        return Spent(counter.shown(budget.remaining(rows)), counter.shown(self._usable(rows, target, own)), spent=True)

    def _draw(self, context: WriteContext, request: DrawRights) -> requests.Rights:
        """Draw first from past openings of this directory, then the rest, or a share, from the pool."""
        rows, own = context.rows, context.stamp.dot.origin
        drawn = [Drawn(account.origin, account.rights, account.node) for account in self.over(rows, request.reclaimed)]
        lacking = request.amount - budget.rights(rows, own) - sum(each.amount for each in drawn)
        pool = budget.pool(rows)
        if lacking > 0 and pool > 0:
            share = -(-pool // request.shares) if request.shares else 0
            drawn.append(Drawn(budget.THE_POOL, min(pool, max(lacking, share))))
        target = context.target
        context.transaction.when_written(lambda: self.unsure[target].extend(drawn))
        moved = sum(each.amount for each in drawn)
        usable = self._usable(rows, target, own)
        self._move(context, drawn)
        return requests.Rights(moved, usable)

    def _release(self, context: WriteContext, request: ReleaseRights) -> requests.Rights:
        """Give rights back: unsure ones to their source, others to the pool."""
        rows, target, own = context.rows, context.target, context.stamp.dot.origin
        usable = self._usable(rows, target, own)
        if request.unsure:
            back = self.unsure.get(target, [])
            context.transaction.when_written(lambda: self._settle(target))
        else:
            context.transaction.when_written(lambda: self.keep(target, 0))
            amount = min(request.amount, usable)
            back = [Drawn(budget.THE_POOL, amount)] if amount > 0 else []
        self._move(context, [each._replace(amount=-each.amount) for each in back])
        moved = sum(each.amount for each in back)
        return requests.Rights(moved, usable if request.unsure else usable - moved)

    def _transfer(self, context: WriteContext, request: TransferRights) -> requests.Rights:
        rows, own = context.rows, context.stamp.dot.origin
        usable, to = self._usable(rows, context.target, own), _unhexed(request.to)
        amount = min(usable, request.amount)
        if amount <= 0 or to == own:
            return requests.Rights(0, usable)
        change = budget.Transfer(to, _unhexed(request.node), amount, self._incarnation.node)
        context.apply(change)
        self.changes(context.transaction, context.target)
        return requests.Rights(amount, usable - amount)

    def _inherit(self, context: WriteContext, _request: InheritRights) -> requests.Rights:
        """Move the rights of removed directories to the account `REMOVED`: nobody may spend them, until an operator says so."""
        inherited, own = self._inherited(context.target.partition), self._incarnation.node
        found = [account for account in self.left(context.rows) if inherited(account.origin)]
        for account in found:
            context.apply(budget.Draw(account.origin, account.rights, own, account.node))
            context.apply(budget.Transfer(budget.REMOVED, budget.REMOVED, account.rights, own))
        self.changes(context.transaction, context.target)
        usable = self._usable(context.rows, context.target, context.stamp.dot.origin)
        return requests.Rights(sum(account.rights for account in found), usable)

    def _move(self, context: WriteContext, draws: list[Drawn]) -> None:
        for each in draws:
            context.apply(budget.Draw(each.source, each.amount, self._incarnation.node, each.holder))
        self.changes(context.transaction, context.target)

    # ── rights ────────────────────────────────────────────────────────────────

    def report_to(self, changed: Callable[[Target], None]) -> None:
        """From now on `changed` is called with every budget whose change was written here."""
        self._told.append(changed)

    def changes(self, transaction: Transaction, target: Target) -> None:
        """Report it once this transaction, which changes the budget, is written."""
        transaction.when_written(partial(self._changed, target))

    def applied(self, place: Place, applied: Applied) -> None:
        """A peer changed a budget."""
        self.changes(place.transaction, place.target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """This transaction replaces rows of a budget. Unsure draws stay: an operation of this node made them."""
        self.changes(transaction, target)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """This transaction ends the budget's generation, and all rights with it."""
        self.changes(transaction, target)
        self.courses.ended(transaction, target)
        transaction.when_written(partial(self._settle, target))
        transaction.when_written(partial(self.keep, target, 0))

    def in_doubt(self, number: int) -> list[Target]:
        """The budgets of a partition with unsure draws."""
        return [target for target in self.unsure if target.partition == number]

    def switched(self, target: Target, *, ended: bool) -> None:
        """The rows of a budget were replaced; `ended`: its generation has ended meanwhile, and with it its unsure draws.

        Other unsure draws stay: an operation of this node made them, and is among the new rows too.
        """
        if ended:
            self._settle(target)
            self.keep(target, 0)
        self._changed(target)

    def usable(self, rows: Rows, target: Target) -> int:
        """The amount that this incarnation may spend."""
        own = self._incarnation.current
        return 0 if own is None else self._usable(rows, target, own)

    def keep(self, target: Target, amount: int) -> None:
        """Keep `amount` of the rights here when rights are spread; 0 ends that. At most `RIGHTS_KEPT_MAX` are remembered."""
        self._kept.pop(target, None)
        if amount:
            self._kept[target] = amount
        if len(self._kept) > self._kept_max:
            del self._kept[next(iter(self._kept))]

    def over(self, rows: Rows, reclaimed: str = "") -> list[budget.Account]:
        """The accounts with rights of past openings of this directory, and of the origin `reclaimed`."""
        also = _unhexed(reclaimed) if reclaimed else None
        found = [account for account in self.left(rows) if account.origin == also or self._incarnation.is_over(account.origin)]
        if also == budget.REMOVED and (rights := budget.removed(rows)) > 0:
            found.append(budget.Account(budget.REMOVED, budget.REMOVED, rights))
        return found

    def left(self, rows: Rows) -> list[budget.Account]:
        """The accounts with rights of single origins, without that of this opening."""
        own = (self._incarnation.current, budget.REMOVED)
        return [account for account in budget.accounts(rows) if account.rights > 0 and account.origin not in own]

    def spread(self, rows: Rows, target: Target, linked: frozenset[bytes], *, everyone: bool) -> budget.Spread:
        """How the rights are spread over this node and its linked nodes; `everyone` says that these are all owners."""
        held = dict.fromkeys([*sorted(linked), self._incarnation.node], 0)
        for account in budget.accounts(rows):
            if account.node in linked:
                held[account.node] += max(0, account.rights)
        held[self._incarnation.node] = self.usable(rows, target)
        pool = max(0, budget.pool(rows)) if everyone else 0
        past = sum(account.rights for account in self.over(rows)) if everyone else 0
        return budget.Spread(self._incarnation.node, held, pool, past, target.name.encode(), self._kept.get(target, 0))

    def sure(self, rows: Rows, target: Target) -> list[Drawn]:
        """Settle the unsure draws: every owner was heard after them, so all count except what others drew as well.

        A past incarnation may have drawn from the pool and never settled that. So while the pool is below 0, rights that
        were drawn from such an incarnation go back to the pool.

        Returns the rights that must go back; they stay unsure until then.
        """
        excess: list[Drawn] = []
        counts, short = 0, max(0, -budget.pool(rows))
        for each in self.unsure.pop(target, []):
            from_pool = each.source == budget.THE_POOL
            back = min(each.amount, short if from_pool else max(0, -_left(rows, each.source)))
            if back:
                excess.append(each._replace(amount=back))
            short -= back if from_pool else 0
            counts += each.amount - back
        if short and counts:
            excess.append(Drawn(budget.THE_POOL, min(short, counts)))
        if excess:
            self.unsure[target] = excess
        return excess

    def _changed(self, target: Target) -> None:
        for tell in self._told:
            tell(target)

    def _settle(self, target: Target) -> None:
        self.unsure.pop(target, None)

    def _usable(self, rows: Rows, target: Target, own: bytes) -> int:
        return budget.rights(rows, own) - self._unsure(target)

    def _unsure(self, target: Target) -> int:
        return sum(each.amount for each in self.unsure[target]) if target in self.unsure else 0

    # ── reads ─────────────────────────────────────────────────────────────────

    def _read(self, view: View, _request: ReadBudget) -> BudgetState:
        rows = view.rows
        granted, spent = counter.value(budget.grants(rows)), counter.value(budget.spends(rows))
        return BudgetState(
            counter.shown(granted),
            counter.shown(spent),
            counter.shown(granted - spent),
            counter.shown(budget.pool(rows)),
            counter.shown(self.usable(rows, view.target)),
            sorted(_holders(rows), key=lambda holder: -holder.rights)[:_LISTED_MAX],
            _conflicts(rows)[:_LISTED_MAX],
        )

    def _course(self, view: View, _request: ReadBudgetCourse) -> BudgetCourse:
        return BudgetCourse(self.courses.of(view.target, view.rows))


def _holders(rows: Rows) -> list[requests.Holder]:
    return [
        requests.Holder(account.origin.hex(), account.node.hex(), account.rights)
        for account in budget.accounts(rows)
        if account.rights
    ]


def _conflicts(rows: Rows) -> list[requests.BudgetConflict]:
    return [
        requests.BudgetConflict(what, users_key(conflict.key) or "", conflict.amount)
        for what, part in (("grant", budget.grants(rows)), ("spend", budget.spends(rows)))
        for conflict in counter.conflicts(part)
    ]


def _is_known(context: WriteContext, part: Rows, request: Grant | Spend, done: str) -> bool:
    key = request.key or context.implied_key
    amount = None if key is None or expires(key) else counter.find(part, key)
    if amount is not None and amount != request.amount:
        raise KeyReused(
            f"key {request.key or context.key!r} has {done} {amount} of budget {request.budget!r}, not {request.amount}. "
            "Nothing was written. Use a new key for a new amount."
        )
    return amount is not None


def _exhausted(request: Spend, remaining: int) -> BudgetExhausted:
    return BudgetExhausted(
        f"budget {request.budget!r} has {remaining} left, but the spend is of {request.amount}. Nothing was written. "
        "Spend less, or have more granted.",
        remaining=remaining,
    )


def _elsewhere(request: Spend, rows: Rows, usable: int) -> RightsElsewhere:
    """If the rights cannot be fetched, `shoal.kinds.budget.peers` adds who has them."""
    return RightsElsewhere(
        f"this node may spend {usable} of budget {request.budget!r}, but the spend is of {request.amount}. "
        "Nothing was written. Try again later, or on another node.",
        budget=request.budget,
        amount=request.amount,
        rights=usable,
        pool=max(0, budget.pool(rows)),
        holders=[],
        retry_after_s=_RETRY_S,
    )


def _check_bounds(amount: int, *, least: int) -> None:
    if not least <= amount <= AMOUNT_MAX:
        raise InvalidInput(f"an amount of a budget is {least} to {AMOUNT_MAX}; got {amount}. Nothing was written.")


def _left(rows: Rows, source: bytes) -> int:
    return budget.removed(rows) if source == budget.REMOVED else budget.rights(rows, source)


def _nobody_is(_origin: Origin) -> bool:
    return False


def _check_name(request: InheritRights) -> None:
    check_name("budget", request.budget)


def _unhexed(text: str) -> bytes:
    return of_hex(text, ORIGIN_BYTES, "an origin and a node are")
