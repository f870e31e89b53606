"""Rights that are spread ahead of need: by every node alone, to an end, and never more than there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.crdt.dot import NOTHING_SEEN, Dot, Origin
from shoal.crdt.rows import Stamp
from shoal.kinds.budget import state as budget
from shoal.kinds.budget.state import THE_POOL, Change, Draw, Grant, Spend, Spread, Transfer
from tests.support.examples import examples
from tests.support.rows import DictRows

ROUNDS_MAX = 4
"""Looks of every node, without changes in between, after which nothing moves any more."""

NODES = [bytes([number]) * 16 for number in range(1, 6)]
amounts = st.integers(min_value=0, max_value=10_000)


@st.composite
def spreads(draw: st.DrawFn) -> Spread:
    held = draw(st.dictionaries(st.sampled_from(NODES), amounts, min_size=1))
    return Spread(draw(st.sampled_from(sorted(held))), held, draw(amounts), 0, draw(st.binary(max_size=8)))


@given(spreads())
def test_all_shares_together_are_what_there_is_and_differ_by_one_at_most(spread: Spread) -> None:
    found = [budget.share(spread._replace(own=node)) for node in spread.held]
    assert sum(found) == sum(spread.held.values()) + spread.pool
    assert max(found) - min(found) <= 1


@given(spreads(), amounts)
def test_a_node_gives_only_what_it_has_beyond_its_share(spread: Spread, asked: int) -> None:
    given_ = budget.to_give(spread, asked)
    held = spread.held[spread.own]
    assert 0 <= given_ <= asked
    assert given_ == 0 or held - given_ >= budget.share(spread)


@given(amounts, amounts)
def test_in_need_a_node_gives_what_it_is_asked_for_if_it_has_it(held: int, asked: int) -> None:
    found = budget.to_give_in_need(held, asked)
    assert min(held, asked) <= found <= held


@given(spreads())
def test_a_node_asks_those_that_can_spare_some_for_no_more_than_its_share(spread: Spread) -> None:
    asked, others = budget.to_ask(spread)
    assert 0 <= asked <= budget.share(spread)
    assert all(spread.held[node] > budget.share(spread) for node in others)
    assert bool(asked) == bool(others)


def test_the_budget_decides_who_has_one_more() -> None:
    held = dict.fromkeys(NODES[:3], 0)
    first = [node for name in range(60) for node in held if budget.share(Spread(node, held, 1, 0, str(name).encode())) == 1]
    assert len(first) == 60
    assert set(first) == set(held)


class Model:
    """A budget on nodes that all know all of it, over the real rows."""

    def __init__(self, size: int) -> None:
        self.nodes = NODES[:size]
        self.rows = DictRows()
        self.moves = 0
        self._sequence = 0

    def apply(self, node: bytes, change: Change) -> None:
        self._sequence += 1
        budget.apply(self.rows, Stamp(Dot(Origin(node), self._sequence), self._sequence, 1, NOTHING_SEEN), change)

    def held(self) -> Mapping[bytes, int]:
        return {node: budget.rights(self.rows, node) for node in self.nodes}

    def known(self, node: bytes) -> Spread:
        return Spread(node, self.held(), max(0, budget.pool(self.rows)), 0, b"tokens")

    def move(self, node: bytes, change: Change) -> None:
        self.moves += 1
        self.apply(node, change)

    def look(self, node: bytes) -> None:
        """As `Rights.spread` and `RightsRequests.answer` do."""
        wanted = budget.to_draw(self.known(node))
        if wanted is not None:
            drawn = min(budget.pool(self.rows), wanted - self.held()[node])
            if drawn > 0:
                self.move(node, Draw(THE_POOL, drawn, node))
        asked, others = budget.to_ask(self.known(node))
        for giver in others:
            amount = min(budget.to_give(self.known(giver), asked), self.held()[giver])
            if amount > 0:
                self.move(giver, Transfer(node, node, amount, giver))
                asked -= amount

    def settle(self, order: Callable[[], list[bytes]]) -> None:
        for _ in range(ROUNDS_MAX):
            before = self.moves
            for node in order():
                self.look(node)
            if self.moves == before:
                return
        raise AssertionError("it does not come to an end")


def check(data: st.DataObject) -> None:
    model = Model(data.draw(st.integers(2, 5)))
    for node in model.nodes:
        model.apply(node, Grant(data.draw(st.integers(1, 5_000))))
    for node in data.draw(st.lists(st.sampled_from(model.nodes), max_size=4)):
        pool = budget.pool(model.rows)
        if pool:
            model.apply(node, Draw(THE_POOL, data.draw(st.integers(1, pool)), node))
    total = budget.remaining(model.rows)
    model.settle(lambda: data.draw(st.permutations(model.nodes)))
    held = model.held()
    assert budget.remaining(model.rows) == total == sum(held.values()) + budget.pool(model.rows)
    assert min(held.values()) >= 0
    assert budget.pool(model.rows) >= 0
    for node in model.nodes:  # Enough, so that a dead one takes no more than what the others lack of that.
        assert 4 * held[node] >= 3 * budget.share(model.known(node)) or total < 2 * len(model.nodes)


@pytest.mark.answers("one-dead-node-stops-the-spending-of-a-budget")
@examples(200)
@given(st.data())
def test_looks_of_all_nodes_come_to_an_end_with_three_quarters_of_a_share_at_each(data: st.DataObject) -> None:
    check(data)


def test_the_check_finds_a_node_that_gives_more_than_it_can_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "to_give", lambda spread, asked: spread.held[spread.own])
    with pytest.raises(AssertionError):
        settings(max_examples=200, deadline=None, database=None, derandomize=True, report_multiple_bugs=False)(
            given(st.data())(check)
        )()


@pytest.mark.parametrize("amount", [100, 10_000, 1_000_000])
def test_a_budget_that_one_node_spends_costs_moves_that_grow_with_its_logarithm(amount: int) -> None:
    model = Model(3)
    first = model.nodes[0]
    model.apply(first, Grant(amount))
    model.settle(lambda: model.nodes)
    step = max(1, amount // 1000)
    while (rights := model.held()[first]) > 0:
        model.apply(first, Spend(min(step, rights), first))
        model.look(first)
    assert budget.remaining(model.rows) < len(model.nodes)  # The last ones it asks for when it needs them.
    assert model.moves <= 30 * amount.bit_length()


def test_rights_that_it_was_told_to_keep_are_not_given() -> None:
    spread = budget.Spread(b"a", {b"a": 10, b"b": 0}, 0, 0, b"budget", kept=8)
    assert budget.to_give(spread, 5) == 2
    assert budget.to_give(spread._replace(kept=0), 9) == 5
