"""Maps over storage: changes of one key, and pages of entries.

The counters of maps that were read last, so that a read of one does not add up all its adds again.

Laws:
- A sum is remembered only while it is known without reading the adds. An add that was issued here, or that arrived with a
  request key that no other operation has, changes it; any other change of its map's key drops it.
- It moves after the write that changes it was made. It is never stored.
- Sums of few adds are not remembered, since reading these is cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nsmallest

from shoal import values
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, TooLarge, TooManySiblings
from shoal.kinds.counter import state as counter
from shoal.kinds.counter.handler import AMOUNT_MAX
from shoal.kinds.map import state as ormap
from shoal.kinds.map.state import ADDS_FOLDED_MIN
from shoal.kinds.register import state as register
from shoal.kinds.register.handler import SIBLINGS_MAX, check_expected
from shoal.kinds.set import state as orset
from shoal.kinds.set.handler import check_elements, spelled
from shoal.names import check_name
from shoal.node.handler import Applied, Checks, Memory, Place, Readers, Target, View, WriteContext, Writers
from shoal.node.incarnation import Incarnation
from shoal.node.naming import PAGE_BYTES_MAX, check_size, is_of
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.protocol.requests import (
    AddEntry,
    AlterEntry,
    EntryAdded,
    EntryFolded,
    EntryPut,
    EntryRemoved,
    FoldEntry,
    MapEntries,
    MapEntry,
    PutEntry,
    ReadMap,
    RemoveEntry,
    SetAltered,
)

MAP_SUMS_MAX = 8192  # Counters of maps whose sums are remembered; a read of another one adds up all its adds.
ADDS_FOLDED_MAX = 4096  # Adds to a key of a map that one operation merges.

_ADDS_MIN = 32  # Adding these up takes about 0.1 ms.


class Sums(Memory):
    """At most `sums_max` counters; the one that was not read for longest is dropped first."""

    is_within = True

    def __init__(self, sums_max: int) -> None:
        self._sums_max = sums_max
        self._known: OrderedDict[tuple[Target, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def value(self, rows: Rows, target: Target, key: str) -> int | None:
        """The counter of a map's key, as it is stored; None if nothing was added to it."""
        known = self._known.get((target, key))
        if known is not None:
            self._known.move_to_end((target, key))
            return known
        total, count = ormap.summed(rows, key)
        if count >= _ADDS_MIN:
            self._known[target, key] = total
            if len(self._known) > self._sums_max:
                self._known.popitem(last=False)
        return total if count else None

    def add(self, transaction: Transaction, target: Target, key: str, amount: int) -> None:
        """An add that counts is part of this write."""
        transaction.when_written(partial(self._add, target, key, amount))

    def drop(self, transaction: Transaction, target: Target, key: str | None = None) -> None:
        """This write changes a key otherwise; with None it may change any key of the map."""
        transaction.when_written(partial(self._drop, target, key))

    def forget_partition(self, number: int) -> None:
        """Forget the sums of a partition's maps, because its rows were replaced."""
        for place in [place for place in self._known if place[0].partition == number]:
            del self._known[place]

    def applied(self, place: Place, applied: Applied) -> None:
        """A peer's add joins the sum; one that may not count, or a removal, drops it."""
        change = applied.change
        if isinstance(change, ormap.Add) and is_of(change.request, applied.fresh):
            self.add(place.transaction, place.target, change.key, change.amount)
        elif isinstance(change, ormap.Add | ormap.Remove):
            self.drop(place.transaction, place.target, change.key)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop all sums of a map that is deleted."""
        self.drop(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop all sums of a map whose rows are replaced."""
        self.drop(transaction, target)

    def _add(self, target: Target, key: str, amount: int) -> None:
        if (target, key) in self._known:
            self._known[target, key] += amount

    def _drop(self, target: Target, key: str | None) -> None:
        dropped = [(target, key)] if key is not None else [place for place in self._known if place[0] == target]
        for place in dropped:
            self._known.pop(place, None)


class Maps:
    """The handler of maps.

    `settled` tells, of a partition's adds, those that can be folded, and `inherited` those of removed directories that this
    node may fold now, as their heir. `added` is called with each add that has a key, and
    `crowded` with the counter of a map to which many openings have added.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        config: Config,
        *,
        settled: Callable[[int], Callable[[ormap.Part], bool]],
        inherited: Callable[[int], Callable[[ormap.Part], bool]],
        added: Callable[[Target, str], None],
        crowded: Callable[[Target, str], None],
    ) -> None:
        self._incarnation = incarnation
        self._config = config
        self._crowd = 2 * ADDS_FOLDED_MIN
        self._settled = settled
        self._inherited = inherited
        self._added = added
        self._crowded = crowded
        self.sums = Sums(MAP_SUMS_MAX)
        self.checks: Checks = {
            PutEntry: self._check_put,
            AddEntry: self._check_add,
            AlterEntry: self._check_alter,
            RemoveEntry: _check_names,
            FoldEntry: _check_names,
        }
        self.writers: Writers = {
            PutEntry: self._put,
            AddEntry: self._add,
            AlterEntry: self._alter,
            RemoveEntry: self._remove,
            FoldEntry: self._fold,
        }
        self.readers: Readers = {ReadMap: self._read}

    # ── checks ────────────────────────────────────────────────────────────────

    def _check_put(self, request: PutEntry) -> None:
        _check_names(request)
        values.check(request.value)
        check_size(self._config, len(request.value), "a map's value")

    def _check_add(self, request: AddEntry) -> None:
        _check_names(request)
        if not -AMOUNT_MAX <= request.amount <= AMOUNT_MAX:
            raise InvalidInput(f"an amount must fit 64 bits; got {request.amount}. Nothing was written.")

    def _check_alter(self, request: AlterEntry) -> None:
        _check_names(request)
        check_elements(self._config, [*request.add, *request.remove])

    # ── writes ────────────────────────────────────────────────────────────────

    def _put(self, context: WriteContext, request: PutEntry) -> EntryPut:
        """Assign the register of a key.

        Raises:
            RegisterChanged: `expect` is not the version of its register here.
            TooManySiblings: the register would hold more than `SIBLINGS_MAX` concurrent values.
            TooLarge: the map has `map_keys_max` keys.
        """
        rows, stamp = context.rows, context.stamp
        mine = ormap.register_of(rows, request.key)
        if request.expect is not None:
            check_expected(f"{request.key!r} of map {request.map!r}", request.expect, register.siblings(mine))
        self._bound(rows, request)
        held = register.entries(mine)
        implied = context.implied_key
        if context.imported is not None and any(each.key == implied for each in held):
            return EntryPut(register.version_of(register.siblings(mine)))
        # What is imported was written without knowledge of what is here.
        replaced = held if context.imported is None else []
        seen = register.clipped(register.context_in(replaced), stamp.context, held)
        change = ormap.Put(request.key, request.value, register.context_entries(seen), implied)
        context.apply(change)
        siblings = register.siblings(mine)
        if len(siblings) > SIBLINGS_MAX:
            raise TooManySiblings(
                f"{request.key!r} of map {request.map!r} would hold {len(siblings)} concurrent values; "
                f"{SIBLINGS_MAX} are allowed. Nothing was written. Read it, then put it again."
            )
        return EntryPut(register.version_of(siblings))

    def _add(self, context: WriteContext, request: AddEntry) -> EntryAdded:
        """Add to the counter of a key.

        Raises:
            TooLarge: the map has `map_keys_max` keys.
            InvalidInput: the sum would not fit 64 bits.
        """
        if context.imported is not None and ormap.value(context.rows, request.key) is not None:
            return EntryAdded()
        self._bound(context.rows, request)
        if counter.grows_too_large(self.sums.value(context.rows, context.target, request.key) or 0, request.amount):
            raise InvalidInput(
                f"{request.key!r} of map {request.map!r} would be above {counter.SHOWN_MAX:,}, or below its negative. Nothing "
                "was written.",
                field="amount",
            )
        key = context.implied_key
        before = ormap.unkeyed(context.rows, request.key, context.stamp.dot.origin) if key is None else []
        amount = request.amount + sum(part.amount for part in before)
        if abs(amount) > AMOUNT_MAX:  # It stays beside them: no row holds so large a sum.
            before, amount = [], request.amount
        change = ormap.Add(request.key, amount, tuple(part.dot for part in before), key)
        context.apply(change)
        # No other add has its request: the key would have been found, and answered with the first one's reply.
        self.sums.add(context.transaction, context.target, request.key, request.amount)
        if key is not None:
            self._added(context.target, request.key)
        elif not before and ormap.adds_of(context.rows, request.key, lambda _: True, self._crowd) == self._crowd:
            context.transaction.when_written(partial(self._crowded, context.target, request.key))
        return EntryAdded()

    def _fold(self, context: WriteContext, request: FoldEntry) -> EntryFolded:
        settled = self._settled(context.target.partition)
        inherited = self._inherited(context.target.partition) if request.inherited else _nothing_is
        least, most = request.least or ADDS_FOLDED_MIN, ADDS_FOLDED_MAX
        change = ormap.fold(
            context.rows,
            request.key,
            directory=self._incarnation.node,
            own=lambda add: self.is_own(add) or inherited(add),
            settled=settled,
            least=least,
            most=most,
        )
        if change is not None:
            context.apply(change)
        left = ormap.adds_of(context.rows, request.key, self.is_own, most)
        return EntryFolded(0 if change is None else len(change.over), left)

    def is_own(self, add: ormap.Part) -> bool:
        """Whether this directory made an add, or merged it from others. Nobody else folds these while it is a member."""
        if add.directory:
            return add.directory == self._incarnation.node
        return add.dot.origin == self._incarnation.current or self._incarnation.is_over(add.dot.origin)

    def _alter(self, context: WriteContext, request: AlterEntry) -> SetAltered:
        """Add and remove members of the set of a key.

        Raises:
            TooLarge: the map has `map_keys_max` keys, or the set would have more than `page_items_max` members.
        """
        members = ormap.set_of(context.rows, request.key)
        add = spelled(request.add)
        remove = [element for element in spelled(request.remove) if orset.contains(members, element)]
        added = sum(not orset.contains(members, element) for element in add)
        size = orset.size(members)
        if not add and not remove:
            return SetAltered(0, 0, size)
        self._bound(context.rows, request)
        if added and size + added > self._config.page_items_max:
            raise TooLarge(
                f"a set in a map has at most {self._config.page_items_max} members; that of {request.key!r} has {size}. "
                "Nothing was written. Use a separate set."
            )
        named = [tuple(orset.named(members, element) for element in part) for part in (add, remove)]
        change = ormap.Alter(request.key, *named)
        context.apply(change)
        return SetAltered(added, len(remove), orset.size(members))

    def _remove(self, context: WriteContext, request: RemoveEntry) -> EntryRemoved:
        if not ormap.holds(context.rows, request.key):
            return EntryRemoved(removed=False)
        change = ormap.removal(context.rows, request.key)
        context.apply(change)
        self.sums.drop(context.transaction, context.target, request.key)
        return EntryRemoved(removed=True)

    def _bound(self, rows: Rows, request: PutEntry | AddEntry | AlterEntry) -> None:
        if ormap.size(rows) >= self._config.map_keys_max and not ormap.holds(rows, request.key):
            raise TooLarge(
                f"map {request.map!r} has {ormap.size(rows)} keys, which is the maximum. Nothing was written. Remove some."
            )

    # ── reads ─────────────────────────────────────────────────────────────────

    def _read(self, view: View, request: ReadMap) -> MapEntries:
        rows, limit = view.rows, min(max(1, request.limit), self._config.page_items_max)
        found: list[MapEntry] = []
        taken = 0
        for key in self._keys(rows, request):
            if len(found) == limit or taken >= PAGE_BYTES_MAX:
                return MapEntries(found, ormap.size(rows), more=True)
            found.append(self._entry(view, key))
            taken += sum(len(sibling.value) for sibling in found[-1].siblings) + sum(map(len, found[-1].members))
        return MapEntries(found, ormap.size(rows), more=False)

    def _entry(self, view: View, key: str) -> MapEntry:
        rows = view.rows
        siblings = register.siblings(ormap.register_of(rows, key))
        total = self.sums.value(rows, view.target, key)
        return MapEntry(
            key,
            [requests.Sibling(sibling.value, sibling.wall_ms) for sibling in siblings],
            register.version_of(siblings),
            None if total is None else counter.shown(total),
            list(orset.members(ormap.set_of(rows, key))),
        )

    def _keys(self, rows: Rows, request: ReadMap) -> Iterator[str]:
        if request.keys is None:
            yield from ormap.keys(rows, prefix=request.prefix, after=request.after)
            return
        for key in _after(request.keys, request.after, self._config.page_items_max + 1):
            if ormap.holds(rows, check_name("key", key)):
                yield key


def _after(keys: Iterable[str], after: str | None, most: int) -> list[str]:
    """The first of these, in order, each once: a page of a hundred thousand does not take sorting them all."""
    return nsmallest(most, {key for key in keys if after is None or key > after})


def _nothing_is(_part: ormap.Part) -> bool:
    return False


def _check_names(request: PutEntry | AddEntry | AlterEntry | RemoveEntry | FoldEntry) -> None:
    check_name("map", request.map)
    check_name("key", request.key)
