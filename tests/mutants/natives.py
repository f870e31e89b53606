"""Bugs in sets, lists, maps and budgets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.handler import Budgets
from shoal.kinds.budget.peers import Rights
from shoal.kinds.budget.state import Transfer
from shoal.kinds.list import state as lists
from shoal.kinds.map import state as ormap
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from shoal.kinds.set.handler import Sets
from shoal.node import service
from shoal.node.collection.entries import Generation, Generations, rows_of
from shoal.node.collection.garbage import Collector
from shoal.node.handler import Target, WriteContext
from shoal.node.transaction import Transaction
from shoal.protocol import requests
from shoal.storage.keys import Kind
from tests.mutants.mutant import Mutant, patch_applier


def a_removal_takes_what_it_has_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orset, "_unseen", lambda dots, named, stamp: [])


def a_removed_key_takes_what_is_unseen_with_it(patch: pytest.MonkeyPatch) -> None:
    sound = ormap._remove
    patch.setattr(ormap, "_remove", lambda rows, stamp, change: sound(rows, stamp, ormap.removal(rows, change.key)))


def a_transfer_of_rights_counts_twice(patch: pytest.MonkeyPatch) -> None:
    sound = budget.apply

    def apply(rows: Rows, stamp: Stamp, change: Transfer) -> None:
        sound(rows, stamp, change)
        budget._move(rows, change.to, change.node, change.amount)

    patch_applier(patch, Transfer, apply)


def rights_are_spent_that_are_not_sure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Budgets, "_unsure", lambda self, target: 0)
    patch.setattr(Budgets, "sure", lambda self, rows, target: self._settle(target) or [])


def an_older_copy_spends_what_it_finds(patch: pytest.MonkeyPatch) -> None:
    async def draw(self: Rights, target: Target, request: requests.DrawRights) -> None:
        self._database.issue(request, None)
        self._database.budgets.unsure.clear()

    patch.setattr(Rights, "_draw", draw)


def rights_that_are_not_sure_are_given_away(patch: pytest.MonkeyPatch) -> None:
    sound = Budgets._transfer

    def transfer(self: Budgets, context: WriteContext, request: requests.TransferRights) -> requests.Rights:
        with pytest.MonkeyPatch.context() as unsure:
            unsure.setattr(Budgets, "_unsure", lambda self, target: 0)
            return sound(self, context, request)

    patch.setattr(Budgets, "_transfer", transfer)
    patch.setattr(budget, "to_give_in_need", lambda held, asked: asked)


def a_spend_is_told_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(service, "_DURABLE", frozenset())


def members_outlive_their_set(patch: pytest.MonkeyPatch) -> None:
    _outlive(Kind.SET, patch)


def elements_outlive_their_list(patch: pytest.MonkeyPatch) -> None:
    _outlive(Kind.LIST, patch)


def _outlive(kind: Kind, patch: pytest.MonkeyPatch) -> None:
    sound = Generations.current

    def current(self: Generations, transaction: Transaction, target: Target) -> Generation:
        found = sound(self, transaction, target)
        return Generation(found.number, rows_of(transaction, target, 0)) if target.kind is kind else found

    patch.setattr(Generations, "current", current)
    patch.setattr(Collector, "enter", lambda self, *given: None)  # Nor are they swept.


def a_pop_leaves_its_members(patch: pytest.MonkeyPatch) -> None:
    def pop(self: Sets, context: WriteContext, request: requests.PopSet) -> requests.SetPopped:
        found, _ = self._page(context.rows, None, request.count)
        return requests.SetPopped(found, orset.size(context.rows) - len(found))

    patch.setattr(Sets, "_pop", pop)


def a_history_is_in_the_order_of_arrival(patch: pytest.MonkeyPatch) -> None:
    def apply(rows: Rows, stamp: Stamp, change: register.AssignBy) -> None:
        before = register._noted(rows)
        register.apply_by(rows, stamp, change)
        new = [noted for noted in register._noted(rows) if noted not in before]
        rows.put(register.HISTORY, register._encoder.encode([*before, *new][-register.HISTORY_MAX :]))

    patch_applier(patch, register.AssignBy, apply)


def a_set_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch_applier(patch, register.AssignBy, register.apply)


def a_moved_element_stays_where_it_was(patch: pytest.MonkeyPatch) -> None:
    sound = lists._store

    def store(rows: Rows, id: bytes, before: list[lists._Add], after: list[lists._Add]) -> int:
        grown = sound(rows, id, before, after)
        if before and after and before[0].path != after[0].path:
            rows.put(lists._key(lists.PLACE, before[0].path), lists._encoder.encode((id, before[0].value)))
        return grown

    patch.setattr(lists, "_store", store)


def an_insert_keeps_its_first_value(patch: pytest.MonkeyPatch) -> None:
    def apply(rows: Rows, stamp: Stamp, change: lists.Insert) -> None:
        lists.apply(rows, stamp, replace(change, values=change.values[:1]))

    patch_applier(patch, lists.Insert, apply)


def the_values_of_an_insert_are_turned_round(patch: pytest.MonkeyPatch) -> None:
    def apply(rows: Rows, stamp: Stamp, change: lists.Insert) -> None:
        lists.apply(rows, stamp, replace(change, values=change.values[::-1]))

    patch_applier(patch, lists.Insert, apply)


def an_insert_that_is_repeated_adds_again(patch: pytest.MonkeyPatch) -> None:
    sound = lists.id_of
    patch.setattr(lists, "id_of", lambda stamp, request, nth: sound(stamp, None, nth))


def the_move_that_comes_last_counts(patch: pytest.MonkeyPatch) -> None:
    def apply(rows: Rows, stamp: Stamp, change: lists.Move) -> None:
        before, path = lists._adds(rows, change.element.id), change.at.path(stamp)
        moved = [add._replace(path=path) if add.is_among(change.element.seen) else add for add in before]
        lists._store(rows, change.element.id, before, moved)

    patch_applier(patch, lists.Move, apply)


MUTANTS = (
    Mutant(elements_outlive_their_list, "a deletion of a list leaves its elements", ("15",)),
    Mutant(an_insert_that_is_repeated_adds_again, "an insert that two nodes carry out adds its values twice", ("6",)),
    Mutant(the_move_that_comes_last_counts, "of two moves of an element each node keeps the one that came last", ("4",)),
    Mutant(a_moved_element_stays_where_it_was, "a moved element is shown where it was too", ("6",)),
    Mutant(an_insert_keeps_its_first_value, "an insert keeps the first of its values", ("3",)),
    Mutant(the_values_of_an_insert_are_turned_round, "an insert puts its last value first", ("4",)),
    Mutant(a_history_is_in_the_order_of_arrival, "a register's history depends on the order of arrival", ("4",)),
    Mutant(a_set_is_not_noted, "a register's history lacks what was set", ("3",)),
    Mutant(a_pop_leaves_its_members, "a pop returns members and does not remove them", ("7",)),
    Mutant(members_outlive_their_set, "a deletion of a set leaves its members", ("15",)),
    Mutant(a_removal_takes_what_it_has_not_seen, "a removal takes adds that it has not seen", ("3", "4")),
    Mutant(a_removed_key_takes_what_is_unseen_with_it, "a removal takes what it has not seen of a key", ("3", "4")),
    Mutant(a_transfer_of_rights_counts_twice, "rights that were given stay with who gave them", ("17",)),
    Mutant(rights_are_spent_that_are_not_sure, "a draw counts before the owners were heard", ("17",)),
    Mutant(rights_that_are_not_sure_are_given_away, "what is drawn and not sure is given to others", ("17",)),
    Mutant(an_older_copy_spends_what_it_finds, "a directory that was set back spends what was spent since", ("17",)),
    Mutant(a_spend_is_told_before_the_fsync, "a spend is acknowledged before it is durable", ("17",)),
)
