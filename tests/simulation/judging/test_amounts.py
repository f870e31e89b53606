"""Amounts by which a counter's value says which adds it holds."""

from __future__ import annotations

from shoal.cluster.operation import partition_of
from simulation.judging.amounts import ADDS_MAX, Amounts, counted, is_nth_amount, nth_amount


def test_each_add_to_a_counter_has_an_amount_of_its_own_and_all_fit_in_64_bits() -> None:
    amounts = [Amounts().next("a")[1]] + [nth_amount(nth) for nth in range(1, ADDS_MAX)]
    assert len(set(amounts)) == ADDS_MAX
    assert all(map(is_nth_amount, amounts))
    assert sum(amounts) < 2**63


def test_a_value_says_which_adds_it_holds_and_how_often() -> None:
    assert dict(counted(nth_amount(0) + 2 * nth_amount(3) + nth_amount(20))) == {
        nth_amount(0): 1,
        nth_amount(3): 2,
        nth_amount(20): 1,
    }
    assert dict(counted(0)) == {}
    assert dict(counted(-4)) == {-1: 1}


def test_a_full_counter_is_followed_by_another_in_the_same_partition() -> None:
    amounts = Amounts()
    names = {amounts.next("a")[0] for _ in range(ADDS_MAX)}
    assert names == {"a"}
    name, amount = amounts.next("a")
    assert (name, amount) == (amounts.counter("a"), 1)
    assert name != "a"
    assert partition_of("s", name) == partition_of("s", "a")


def test_an_amount_of_another_kind_is_known() -> None:
    assert not any(map(is_nth_amount, (-1, 0, 2, 3, 5, 8)))
