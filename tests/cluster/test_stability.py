"""Stability: once an eraser is stable, every operation that did not know of it has been applied by every owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

import pytest

from shoal.cluster import truncation as stability
from shoal.cluster.truncation import Cut, Holding, Ripened, Waiting, advanced_cut, advanced_ripened, may_retire, ripe
from shoal.crdt.dot import Dot, Origin, VersionVector

ORIGINS = [Origin(bytes([n]) * 16) for n in range(4)]


class Owner:
    """One that issues, pushes what it issued (lossily), and tells its vector, whole or in single acknowledgements."""

    def __init__(self, number: int) -> None:
        self.origin = ORIGINS[number]
        self.vector = VersionVector()

    def issue(self) -> Dot:
        dot = Dot(self.origin, self.vector[self.origin] + 1)
        self.vector = self.vector.advance(dot)
        return dot


class World:
    """What the first owner, which asks, knows of the others."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.owners = [Owner(n) for n in range(1 + self.random.randrange(3))]
        self.known = [VersionVector() for _ in self.owners]
        self.whole: list[VersionVector | None] = [None for _ in self.owners]
        self.ignorant: set[Dot] = set()  # Issued without knowledge of the eraser.
        self.eraser: Dot | None = None

    def step(self) -> None:
        choice, one, other = self.random.randrange(5), self._any(), self._any()
        if choice == 0:
            owner = self.owners[one]
            knows = self.eraser is not None and owner.vector.covers(self.eraser)
            dot = owner.issue()
            if not knows:
                self.ignorant.add(dot)
        elif choice == 1:
            # Causal delivery, in whole prefixes: good enough for who knows what.
            self.owners[one].vector = self.owners[one].vector.join(self.owners[other].vector)
        elif choice == 2:
            self.known[one] = self.known[one].join(self._acknowledged(one))
        elif choice == 3:
            vector = self.owners[one].vector
            self.known[one], self.whole[one] = self.known[one].join(vector), vector
        elif self.eraser is None:
            self.eraser = self.owners[0].issue()

    def _acknowledged(self, one: int) -> VersionVector:
        """A `Have`: single entries, never those that the owner issued itself."""
        owner = self.owners[one]
        entries = {o: n for o, n in owner.vector.items() if o != owner.origin and self.random.random() < 0.5}
        return VersionVector(entries)

    def _any(self) -> int:
        return self.random.randrange(len(self.owners))

    def holdings(self) -> list[Holding]:
        own = self.owners[0].vector
        others = zip(self.known[1:], self.whole[1:], strict=True)
        return [Holding(own, own), *(Holding(known, whole) for known, whole in others)]


class Outcome(NamedTuple):
    stable: bool
    safe: bool


Advanced = Callable[[Waiting, list[Holding]], Waiting]


def run(seed: int, advanced: Advanced = stability.advanced, steps: int = 200) -> Outcome:
    world = World(seed)
    waiting: Waiting | None = None
    for _ in range(steps):
        world.step()
        if world.eraser is None:
            continue
        waiting = advanced(waiting or Waiting(world.eraser), world.holdings())
        if stability.is_stable(waiting, world.holdings()):
            missing = [dot for dot in world.ignorant if not all(owner.vector.covers(dot) for owner in world.owners)]
            # Whoever holds the eraser issues nothing in ignorance of it any more.
            knowing = all(owner.vector.covers(world.eraser) for owner in world.owners)
            return Outcome(True, knowing and not missing)
    return Outcome(False, True)


def test_operations_without_a_stable_eraser_are_applied_everywhere() -> None:
    outcomes = [run(seed) for seed in range(300)]
    assert all(outcome.safe for outcome in outcomes)
    assert sum(outcome.stable for outcome in outcomes) > 200


def bound_from_acknowledgements(waiting: Waiting, owners: list[Holding]) -> Waiting:
    return stability.advanced(waiting, [Holding(owner.vector, owner.vector) for owner in owners])


def one_step(waiting: Waiting, owners: list[Holding]) -> Waiting:
    return Waiting(waiting.dot, VersionVector({waiting.dot.origin: waiting.dot.sequence}))


def owner_left_out(waiting: Waiting, owners: list[Holding]) -> Waiting:
    return stability.advanced(waiting, owners[:-1])


@pytest.mark.answers("prune-frees-a-chunk-that-a-concurrent-save-reuses")
def test_mutants_are_caught() -> None:
    for mutant in (bound_from_acknowledgements, one_step, owner_left_out):
        assert not all(run(seed, mutant).safe for seed in range(300)), mutant


def test_an_owner_that_says_nothing_stops_the_clock_and_is_named() -> None:
    dot = Dot(ORIGINS[0], 1)
    holds, silent = VersionVector({ORIGINS[0]: 1}), Holding(VersionVector(), None)
    waiting = stability.advanced(Waiting(dot), [Holding(holds, holds), silent])
    assert waiting.bound is None
    assert not stability.is_stable(waiting, [Holding(holds, holds), silent])
    assert stability.lacks(waiting, silent)
    assert not stability.lacks(waiting, Holding(holds, holds))


@pytest.mark.answers("lost-operation-stops-a-sweep")
def test_a_bound_that_names_what_was_lost_with_a_disk_is_replaced() -> None:
    eraser, lost, kept = Dot(ORIGINS[0], 1), Dot(ORIGINS[1], 1), Dot(ORIGINS[2], 1)
    here = VersionVector([eraser, kept])
    there = VersionVector([eraser, lost])
    waiting = stability.advanced(Waiting(eraser), [Holding(here, here), Holding(there, there)])
    assert not stability.is_stable(waiting, [Holding(here, here), Holding(there, there)])

    gone = Holding(VersionVector(), None)  # It is replaced, and nothing is known of it.
    assert stability.advanced(waiting, [Holding(here, here), gone]) == waiting

    again = stability.advanced(waiting, [Holding(here, here), Holding(here, here)])
    assert stability.is_stable(again, [Holding(here, here), Holding(here, here)])


def test_a_bound_does_not_grow_with_what_is_issued_later() -> None:
    eraser, later = Dot(ORIGINS[0], 1), Dot(ORIGINS[1], 1)
    before, after = VersionVector([eraser]), VersionVector([eraser, later])
    waiting = stability.advanced(Waiting(eraser), [Holding(before, before), Holding(before, before)])
    owners = [Holding(before, before), Holding(after, after)]
    assert stability.is_stable(stability.advanced(waiting, owners), owners)


def test_alone_everything_is_stable_at_once() -> None:
    dot = Dot(ORIGINS[0], 1)
    holds = [Holding(VersionVector({ORIGINS[0]: 1}), VersionVector({ORIGINS[0]: 1}))]
    assert stability.is_stable(stability.advanced(Waiting(dot), holds), holds)


@pytest.mark.answers("key-expires-while-a-second-operation")
def test_nothing_that_did_not_know_of_a_stable_cut_is_under_way() -> None:
    for seed in range(100):
        world, cut = World(seed), Cut()
        waiting: Waiting | None = None
        for _ in range(200):
            world.step()
            if world.eraser is None:
                continue
            cut = advanced_cut(cut, world.holdings())
            waiting = stability.advanced(waiting or Waiting(world.eraser), world.holdings())
            if cut.stable.covers(world.eraser):
                missing = [dot for dot in world.ignorant if not all(owner.vector.covers(dot) for owner in world.owners)]
                assert not missing
                break


def test_the_operations_of_a_lone_owner_are_stable_at_once() -> None:
    here = VersionVector({ORIGINS[0]: 3})
    assert advanced_cut(Cut(), [Holding(here, here)]).stable == here


def test_a_cut_waits_for_an_owner_that_says_nothing() -> None:
    here = VersionVector({ORIGINS[0]: 3})
    assert not advanced_cut(Cut(), [Holding(here, here), Holding(here, None)]).stable


# ── retiring ──────────────────────────────────────────────────────────────────

PAST, LIVE = Origin(b"p" * 16), Origin(b"l" * 16)
END = Dot(PAST, 3)


def owner(held: Mapping[Origin, int], *, whole: bool = True) -> Holding:
    vector = VersionVector(held)
    return Holding(vector, vector if whole else None)


def test_a_lone_owner_may_retire_at_once() -> None:
    owners = [owner({PAST: 3, LIVE: 1})]
    assert may_retire(advanced_ripened(Ripened(), [END], owners), owners)


@pytest.mark.answers("origin-is-retired-that-an-owner-lacks")
def test_an_owner_that_lacks_an_operation_or_everything_holds_it_up() -> None:
    for other in (owner({PAST: 2, LIVE: 1}), owner({}), owner({PAST: 3}, whole=False)):
        owners = [owner({PAST: 3, LIVE: 1}), other]
        assert not may_retire(advanced_ripened(Ripened(), [END], owners), owners)


def test_an_owner_that_holds_more_of_it_holds_it_up() -> None:
    """Somebody else writes under it."""
    assert not ripe([END], [owner({PAST: 3}), owner({PAST: 4})])


def test_an_owners_other_operations_must_be_held_by_all() -> None:
    """It may have been issued without knowledge of the origin's last operation."""
    owners = [owner({PAST: 3}), owner({PAST: 3, LIVE: 7})]
    step = advanced_ripened(Ripened(), [END], owners)
    assert step.ends == {END}
    assert not may_retire(step, owners)
    later = [owner({PAST: 3, LIVE: 7}), owner({PAST: 3, LIVE: 9})]
    assert advanced_ripened(step, [END], later) == step  # What was issued since does not matter.
    assert may_retire(step, later)


def test_a_bound_that_was_lost_with_a_disk_is_replaced() -> None:
    step = advanced_ripened(Ripened(), [END], [owner({PAST: 3}), owner({PAST: 3, LIVE: 7})])
    owners = [owner({PAST: 3}), owner({PAST: 3})]
    assert may_retire(advanced_ripened(step, [END], owners), owners)


def test_an_origin_is_ripe_once_all_hold_all() -> None:
    assert ripe([END], [owner({PAST: 3}), owner({PAST: 3})]) == {END}
    for other in (owner({PAST: 2}), owner({}), owner({PAST: 3}, whole=False)):
        assert not ripe([END], [owner({PAST: 3}), other])
