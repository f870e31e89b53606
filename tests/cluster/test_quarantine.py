"""Quarantine: what was refused is left alone for its time, and nothing else is."""

from __future__ import annotations

from itertools import product

import pytest

from shoal.cluster.delivery import Quarantine
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin

A, B = (Origin(name * ORIGIN_BYTES) for name in (b"a", b"b"))
LIAR, HONEST = b"l" * 16, b"h" * 16
DURATION_S = 60.0


def quarantine(places_max: int = 10) -> Quarantine:
    return Quarantine(places_max=places_max, duration_s=DURATION_S)


@pytest.mark.parametrize("after", [0.0, DURATION_S - 1, DURATION_S])
def test_requested_and_taken_operations_agree(after: float) -> None:
    for refused, asked in product(range(1, 6), repeat=2):
        found = quarantine()
        found.put(7, Dot(A, refused), "bad", 0.0, sender=LIAR)
        covered = found.covers(7, Dot(A, asked), after, sender=LIAR)
        assert covered is (asked >= refused and after < DURATION_S)
        assert covered is (found.sound_until(7, A, asked, after, sender=LIAR) < asked)


def test_other_origins_and_partitions_are_not_held_up() -> None:
    found = quarantine()
    found.put(7, Dot(A, 1), "bad", 0.0, sender=LIAR)
    assert not found.covers(7, Dot(B, 1), 0.0, sender=LIAR)
    assert not found.covers(8, Dot(A, 1), 0.0, sender=LIAR)


def test_operations_of_others_are_taken() -> None:
    found = quarantine()
    found.put(7, Dot(A, 1), "bad", 0.0, sender=LIAR)
    assert not found.covers(7, Dot(A, 1), 0.0, sender=HONEST)
    assert found.sound_until(7, A, 9, 0.0, sender=HONEST) == 9
    found.put(7, Dot(A, 1), "bad", 0.0, sender=HONEST)
    assert found.listed() == [f"operation 1 of {A.hex()} in partition 7: bad"]
    found.stored(7, Dot(A, 1))
    assert found.listed() == []


def test_of_two_refused_operations_of_an_origin_the_first_counts() -> None:
    found = quarantine()
    found.put(7, Dot(A, 5), "late", 0.0, sender=LIAR)
    found.put(7, Dot(A, 2), "early", 0.0, sender=LIAR)
    found.put(7, Dot(A, 9), "later", 0.0, sender=LIAR)
    assert found.sound_until(7, A, 100, 0.0, sender=LIAR) == 1


def test_a_sound_copy_ends_it_and_a_copy_of_another_does_not() -> None:
    found = quarantine()
    found.put(7, Dot(A, 2), "bad", 0.0, sender=LIAR)
    found.stored(7, Dot(A, 1))
    assert found.covers(7, Dot(A, 2), 0.0, sender=LIAR)
    found.stored(7, Dot(A, 2))
    assert not found.covers(7, Dot(A, 2), 0.0, sender=LIAR)


def test_of_sound_copies_that_were_stored_together_one_must_be_the_operation() -> None:
    found = quarantine()
    found.put(7, Dot(A, 5), "bad", 0.0, sender=LIAR)
    found.stored(7, Dot(A, 4), 4)
    found.stored(7, Dot(A, 9), 4)
    assert found.covers(7, Dot(A, 5), 0.0, sender=LIAR)
    found.stored(7, Dot(A, 9), 5)
    assert not found.covers(7, Dot(A, 5), 0.0, sender=LIAR)


def test_past_its_bound_the_oldest_is_tried_again() -> None:
    found = quarantine(places_max=1)
    found.put(7, Dot(A, 1), "first", 0.0, sender=LIAR)
    found.put(7, Dot(B, 1), "second", 0.0, sender=LIAR)
    assert found.listed() == [f"operation 1 of {B.hex()} in partition 7: second"]
