"""The table of leases, and when a lease ends by clocks that nobody compares."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.kinds.lease.state import table as timing
from shoal.kinds.lease.state.table import (
    HELD,
    ITEM_BYTES,
    OFFERED,
    OVER,
    REBUILT,
    Claim,
    Decider,
    Grant,
    Group,
    Handed,
    HandOut,
    Held,
    LeaseName,
    NobodyWaits,
    QueueFull,
    Sightings,
    Table,
    holds_s,
    is_item,
    item_name,
    shard_key,
    waits_s,
    worklist_mark,
)

NAME = LeaseName("s", "t", True)
TTL_MS = 10_000


def claim(number: int, ttl_ms: int = TTL_MS) -> Claim:
    return Claim(bytes([number]) * 16, f"holder {number}", ttl_ms)


def turn(beat: int = 0, *, node: bytes = b"n", dead: bool = False, alone: bool = False, waiters_max: int = 4) -> Decider:
    return Decider(node, bytes([beat]), lambda name, grant: dead, lambda name, grant: alone, waiters_max, 1 << 14)


def held(table: Table, number: int, at: Decider) -> Grant:
    grant = table.acquire(NAME, claim(number), at, waits=False)
    assert grant is not None
    return grant


def test_a_lease_has_one_holder() -> None:
    table = Table()
    assert held(table, 1, turn(1)).fence == 1
    with pytest.raises(Held) as refused:
        held(table, 2, turn(2))
    assert refused.value.grant.claim == claim(1)


def test_a_repeated_claim_is_the_same_grant() -> None:
    table = Table()
    first = held(table, 1, turn(1))
    again = held(table, 1, turn(2))
    assert (again.fence, again.beat) == (first.fence, b"\x02")


def test_fencing_numbers_grow_when_a_lease_is_dropped_and_taken_again() -> None:
    table = Table()
    grant = held(table, 1, turn(1))
    assert table.release(NAME, grant.fence, claim(1).token, turn(2))
    assert not table.grants
    assert held(Table.unpack(table.pack()), 1, turn(3)).fence == 2


def test_those_that_wait_are_served_in_order() -> None:
    table = Table()
    grant = held(table, 1, turn(1))
    for number in (2, 3, 2):
        assert table.acquire(NAME, claim(number), turn(number), waits=True) is None
    assert table.release(NAME, grant.fence, claim(1).token, turn(4))
    with pytest.raises(Held):
        held(table, 4, turn(5))
    assert table.acquire(NAME, claim(3), turn(6), waits=True) is None
    second = table.acquire(NAME, claim(2), turn(7), waits=True)
    assert second is not None
    assert second.state == HELD
    assert table.release(NAME, second.fence, claim(2).token, turn(8))
    assert held(table, 3, turn(9)).fence == 3


def test_a_lease_is_handed_to_the_holder_that_is_named() -> None:
    table = Table()
    grant = held(table, 1, turn(1))
    for number in (2, 3):
        table.acquire(NAME, claim(number), turn(number), waits=True)
    with pytest.raises(NobodyWaits) as refused:
        table.release(NAME, grant.fence, claim(1).token, turn(4), to="holder 9")
    assert refused.value.waiting == ["holder 2", "holder 3"]
    assert table.grants[NAME].is_of(claim(1).token)
    assert table.release(NAME, grant.fence, claim(1).token, turn(5), to="holder 3")
    assert held(table, 3, turn(6)).fence == 2
    assert table.grants[NAME].waiting == (claim(2),)


def test_a_release_through_another_node_than_the_last_renewal_frees_nothing_before_the_lease_is_dead() -> None:
    """The other node may still accept writes of this term."""
    table = Table()
    grant = held(table, 1, turn(1, node=b"a"))
    table.acquire(NAME, claim(2), turn(2), waits=True)
    assert table.release(NAME, grant.fence, claim(1).token, turn(3, node=b"b"))
    assert table.grants[NAME].state == OVER
    assert table.renewed(NAME, grant.fence, claim(1).token, turn(4, node=b"a")) is None
    assert table.acquire(NAME, claim(2), turn(5), waits=True) is None
    assert table.acquire(NAME, claim(2), turn(6, dead=True), waits=True) is not None


def test_a_lease_that_moved_between_nodes_is_freed_at_once_when_one_was_alone_long_enough() -> None:
    for alone in (False, True):
        table = Table()
        grant = held(table, 1, turn(1, node=b"a"))
        assert table.renewed(NAME, grant.fence, claim(1).token, turn(2, node=b"b")) is not None
        assert table.renewed(NAME, grant.fence, claim(1).token, turn(3, node=b"b")) is not None
        assert table.release(NAME, grant.fence, claim(1).token, turn(4, node=b"b", alone=alone))
        assert (NAME in table.grants) is not alone


def test_a_queue_has_a_bound() -> None:
    table = Table()
    held(table, 1, turn(1))
    for number in range(2, 6):
        table.acquire(NAME, claim(number), turn(number), waits=True)
    with pytest.raises(QueueFull):
        table.acquire(NAME, claim(7), turn(7), waits=True)


def test_a_claim_that_does_not_wait_any_more_leaves_the_queue() -> None:
    table = Table()
    held(table, 1, turn(1))
    table.acquire(NAME, claim(2), turn(2), waits=True)
    with pytest.raises(Held):
        held(table, 2, turn(3))
    assert table.grants[NAME].waiting == ()


def test_a_dead_lease_is_dropped_or_passed_on_when_the_table_is_stored() -> None:
    table = Table()
    held(table, 1, turn(1))
    table.tidy(turn(2, dead=True))
    assert not table.grants
    held(table, 1, turn(3))
    table.acquire(NAME, claim(2), turn(4), waits=True)
    table.tidy(turn(5, dead=True))
    assert table.grants[NAME].claim == claim(2)


def test_after_a_rebuild_each_term_is_over() -> None:
    table = Table()
    granted = table.acquire(NAME, claim(1), turn(), waits=False)
    assert granted is not None
    table.acquire(NAME, claim(2), turn(), waits=True)
    table.rebuild(by=1000, beat=b"new", unseen_ms=0)
    assert table.renewed(NAME, granted.fence, granted.claim.token, turn()) is None
    assert table.grants[NAME].state == OVER
    assert table.grants[NAME].waiting == ()
    assert table.last == granted.fence + 1000


def test_after_a_rebuild_unseen_leases_are_waited_for() -> None:
    table = Table()
    table.rebuild(by=1000, beat=b"new", unseen_ms=5000)
    with pytest.raises(Held) as held:
        table.acquire(NAME, claim(1), turn(), waits=False)
    assert held.value.grant.is_unseen
    table._settle(REBUILT, turn()._replace(is_dead=lambda name, grant: True))
    assert table.acquire(NAME, claim(1), turn(), waits=False) is not None


def test_a_table_survives_packing() -> None:
    table = Table()
    held(table, 1, turn(1))
    table.acquire(NAME, claim(2), turn(2), waits=True)
    again = Table.unpack(table.pack())
    assert (again.last, again.grants) == (table.last, table.grants)
    assert again.pack() == table.pack()


# ── clocks ────────────────────────────────────────────────────────────────────


def sightings(drift: float = 0.01) -> Sightings:
    return Sightings(drift=drift, offer_ms=1000)


def test_a_grant_is_dead_once_it_was_seen_unrenewed_for_its_ttl_and_the_drift() -> None:
    table, seen = Table(), sightings()
    grant = held(table, 1, turn(1))
    seen.see(table, 100.0)
    seen.see(table, 105.0)
    assert not seen.is_dead(NAME, grant, 110.0)
    assert seen.is_dead(NAME, grant, 110.1)
    renewed = table.renewed(NAME, grant.fence, claim(1).token, turn(2))
    assert renewed is not None
    assert not seen.is_dead(NAME, renewed, 1000.0)  # It has not been seen.
    seen.glimpse(table, 111.0)
    assert not seen.is_dead(NAME, renewed, 121.0)
    assert seen.is_dead(NAME, renewed, 121.1)


def test_an_offer_goes_on_to_the_next_if_it_is_not_taken_in_time() -> None:
    table, seen = Table(), sightings()
    grant = held(table, 1, turn(1))
    offered = replace(grant, state=OFFERED)
    table.grants[NAME] = offered
    seen.see(table, 100.0)
    assert not seen.is_dead(NAME, offered, 101.0)  # `offer_ms`, not its ttl,
    assert seen.is_dead(NAME, offered, 101.1)  # and the drift.


def test_only_renewals_that_were_stored_make_a_node_the_only_one() -> None:
    """It may have proposed one that was not stored, while another node's was."""
    table, seen = Table(), sightings()
    grant = held(table, 1, turn(1, node=b"a"))
    seen.see(table, 0.0)
    moved = table.renewed(NAME, grant.fence, claim(1).token, turn(2, node=b"b"))
    assert moved is not None
    seen.glimpse(table, 1.0)
    assert not seen.is_alone(NAME, moved, 50.0)
    seen.see(table, 5.0)
    assert not seen.is_alone(NAME, moved, 15.0)
    assert seen.is_alone(NAME, moved, 15.1)


@pytest.mark.answers("leases-have-one-holder")
@given(
    drift=st.floats(0.0001, 0.3),
    holder_rate=st.floats(-1, 1),
    other_rate=st.floats(-1, 1),
    ttl_ms=st.integers(1000, 60_000),
    delay_s=st.floats(0, 100),
)
@example(drift=0.3, holder_rate=-1.0, other_rate=1.0, ttl_ms=60_000, delay_s=0.0)  # The holder's is slow, the other fast.
def test_a_holder_stops_before_others_may_start(
    drift: float, holder_rate: float, other_rate: float, ttl_ms: int, delay_s: float
) -> None:
    """Clocks run at any rate within the bound, and others see the renewal at any time after it was sent."""
    sent_s = 0.0
    stops_s = sent_s + holds_s(ttl_ms, drift) / (1 + holder_rate * drift)
    starts_s = sent_s + delay_s + waits_s(ttl_ms, drift) / (1 + other_rate * drift)
    assert stops_s <= starts_s + 1e-9


@pytest.mark.answers("leases-have-one-holder")
@given(st.integers(0, 2**32))
def test_two_terms_never_have_writes_accepted_at_once(seed: int) -> None:
    """Three nodes share a table; each knows what it renewed, and its clock runs at a rate of its own within the bound."""
    _World(Random(seed)).run(120)


@pytest.mark.answers("lease-without-a-margin")
def test_a_missing_margin_for_drift_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "waits_s", lambda ttl_ms, drift: ttl_ms / 1000)
    monkeypatch.setitem(globals(), "holds_s", lambda ttl_ms, drift: ttl_ms / 1000)
    with pytest.raises(AssertionError):
        for seed in range(500):
            _World(Random(seed)).run(120)


class _World:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.drift = 0.05
        self.now = 0.0
        self.table = Table().pack()
        self.beats = 0
        self.nodes = b"abc"
        self.rates = {node: 1 + random.uniform(-self.drift, self.drift) for node in self.nodes}
        self.seen = {node: Sightings(drift=self.drift, offer_ms=1000) for node in self.nodes}
        self.known: dict[int, tuple[int, float]] = {}  # Node → the term whose writes it accepts, and until when.
        self.terms: dict[int, int] = {}  # Claim → its fencing number.
        self.ended: dict[int, int] = {}
        self.last = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.random.choice((0.01, 0.3, 2.0))
            node = self.random.choice(self.nodes)
            self.act(node)
            accepting = {fence for node, (fence, until) in self.known.items() if self.clock(node) < until}
            assert len(accepting) <= 1, accepting
            assert all(fence >= self.last for fence in accepting)
            self.last = max([self.last, *accepting])

    def clock(self, node: int) -> float:
        return self.now * self.rates[node]

    def act(self, node: int) -> None:
        here, number = self.clock(node), self.random.randrange(1, 5)
        seen = self.seen[node]
        table = Table.unpack(self.table)
        seen.see(table, here)
        self.beats += 1
        at = Decider(
            bytes([node]),
            self.beats.to_bytes(8, "big"),
            lambda name, grant: seen.is_dead(name, grant, here),
            lambda name, grant: seen.is_alone(name, grant, here),
            3,
            1 << 14,
        )
        wanted = Claim(bytes([number]) * 16, str(number), self.random.choice((2000, 3000)))
        kind = self.random.random()
        grant = None
        if kind < 0.4:
            try:
                grant = table.acquire(NAME, wanted, at, waits=self.random.random() < 0.7)
            except (Held, QueueFull):
                return
        elif kind < 0.8 and number in self.terms:
            grant = table.renewed(NAME, self.terms[number], wanted.token, at)
        elif number in self.terms:
            self.known.pop(node, None)
            self.ended[node] = max(self.ended.get(node, 0), self.terms[number])
            table.release(NAME, self.terms[number], wanted.token, at)
        if self.random.random() < 0.15:
            return  # It is proposed, and not stored.
        self.table = table.pack()
        seen.see(table, self.clock(node))
        if grant is not None:
            self.terms[number] = grant.fence
            if grant.fence > self.ended.get(node, 0):
                self.known[node] = grant.fence, here + holds_s(grant.claim.ttl_ms, self.drift)


MARK = worklist_mark("t", "w")


def item(number: int) -> bytes:
    return bytes([number]) * 32


def no_group(item: bytes) -> Group:
    return Group()


def handed_out(table: Table, number: int, *items: bytes, group_of: Callable[[bytes], Group] = no_group) -> Handed | None:
    [found] = table.hand_out(HandOut("s", MARK, items, [claim(number)]), group_of, turn(number)).found
    return found


def test_each_claim_gets_the_first_item_that_nobody_has() -> None:
    table = Table()
    first, second = handed_out(table, 1, item(1), item(2)), handed_out(table, 2, item(1), item(2))
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (item(1), item(2))
    assert (first[1].fence, second[1].fence) == (1, 2)
    assert handed_out(table, 3, item(1), item(2)) is None


def test_a_repeated_claim_of_an_item_gets_the_same_item_although_an_earlier_one_is_free() -> None:
    table = Table()
    first = handed_out(table, 1, item(2))
    again = handed_out(table, 1, item(1), item(2))
    assert first is not None
    assert again is not None
    assert (again[0], again[1].fence, again[1].beat) == (item(2), first[1].fence, b"\x01")
    assert len(table.grants) == 1


def test_of_a_group_only_so_many_items_are_handed_out() -> None:
    table = Table()
    items = [item(number) for number in (1, 2, 3)]

    def group_of(item: bytes) -> Group:
        return Group("g", 2) if item in items else Group()

    wanted = HandOut("s", MARK, [*items, item(4)], [claim(number) for number in (1, 2, 3)])
    got = table.hand_out(wanted, group_of, turn(1)).found
    assert [each and each[0] for each in got] == [items[0], items[1], item(4)]
    table.drop(item_name("s", MARK, items[0]), 1, claim(1).token)
    freed = handed_out(table, 5, *items, group_of=group_of)
    assert freed is not None
    assert freed[0] == items[0]


def test_a_claim_gets_a_longer_ttl_and_never_a_shorter_one() -> None:
    table = Table()
    handed_out(table, 1, item(1))
    name = item_name("s", MARK, item(1))
    for asked, got in ((2 * TTL_MS, 2 * TTL_MS), (TTL_MS, 2 * TTL_MS)):
        grant = table.renewed(name, 1, claim(1).token, turn(2), ttl_ms=asked)
        assert grant is not None
        assert grant.claim.ttl_ms == got


def test_all_claims_of_a_worklist_are_in_one_shard_and_are_no_leases_of_that_name() -> None:
    names = [item_name("s", MARK, bytes([number]) * 32) for number in range(5)]
    assert len({shard_key(name) for name in names}) == 1
    assert len(set(names)) == 5
    assert all(is_item(name) for name in names)
    assert not is_item(NAME)


@pytest.mark.answers("items-have-one-worker")
def test_claims_that_are_handed_out_together_get_what_they_would_get_one_after_another() -> None:
    together, alone = Table(), Table()
    items = [item(number) for number in range(5)]
    handed_out(together, 9, items[1])
    handed_out(alone, 9, items[1])
    claims = [claim(number) for number in (1, 9, 2, 3, 4, 5)]
    found = together.hand_out(HandOut("s", MARK, items, claims), no_group, turn(7)).found
    one_by_one = [alone.hand_out(HandOut("s", MARK, items, [each]), no_group, turn(7)).found[0] for each in claims]
    assert found == one_by_one
    assert found[-1] is None
    assert together.pack() == alone.pack()


def test_no_more_claims_are_handed_out_than_there_is_room_for() -> None:
    table = Table()
    items = [item(number) for number in range(200)]
    claims = [claim(number) for number in range(200)]
    at = turn(1)._replace(bytes_max=4096)
    outcome = table.hand_out(HandOut("s", MARK, items, claims), no_group, at)
    assert outcome.is_full
    assert 20 < sum(found is not None for found in outcome.found) == len(table.grants)
    assert 3500 < len(table.pack()) <= 4096


def filled(table: Table, space: str, at: Decider) -> int:
    """Take leases of a space for as long as it has room, and return how many there were."""
    for number in range(10_000):
        name = LeaseName(space, f"{number:04}")
        table.acquire(name, claim(1), at, waits=False)
        if table.left_bytes(space, at.bytes_max) < 0:
            del table.grants[name]
            return number
    raise AssertionError("a table has a bound")


def test_no_space_fills_a_table() -> None:
    table, at = Table(), turn(1)
    alone = filled(Table(), "a", at)
    assert alone > 100
    taken = [filled(table, space, at) for space in "abc"]
    assert taken[0] == alone
    assert taken[1] > 10
    assert taken[2] > 0


def test_claims_of_work_leave_room_to_other_spaces() -> None:
    items = [bytes([number]) * ITEM_BYTES for number in range(250)]
    table, at = Table(), turn(1)
    claims = [claim(number) for number in range(250)]
    outcome = table.hand_out(HandOut("s", MARK, items, claims), no_group, at)
    assert outcome.is_full
    assert table.left_bytes("s", at.bytes_max) >= 0
    assert filled(table, "other", at) > 10
