"""What a node knows of its peers' clocks, and when its own is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.comparing import ANY, NOT_HEARD, Clock, Clocks
from shoal.cluster.messages import decode, encode
from shoal.errors import InvalidValue

BOUND_MS = 1000
PEERS = [bytes([n]) * 16 for n in range(1, 9)]


@dataclass
class Machine:
    """Its clocks, over the true time."""

    wall_ms: int
    steady_ms: int

    def __post_init__(self) -> None:
        self.clocks = Clocks(skew_ms_max=BOUND_MS)

    @property
    def lead(self) -> int:
        return self.wall_ms - self.steady_ms

    def says(self, to: bytes, at: int) -> Clock:
        return self.clocks.message(to, wall_ms=at + self.wall_ms, steady_ms=at + self.steady_ms)


def exchange(ours: Machine, own: bytes, theirs: Machine, peer: bytes, at: int, *delays: int) -> int:
    """Some messages, first ours, each under way for so long. Returns when the last one came."""
    for nth, delay in zip(count(), delays, strict=False):
        sender, name, receiver, other = (ours, own, theirs, peer) if nth % 2 == 0 else (theirs, peer, ours, own)
        message = sender.says(other, at)
        at += delay
        receiver.clocks.heard(name, message, steady_ms=at + receiver.steady_ms)
    return at


machines = st.builds(Machine, st.integers(10**9, 2 * 10**9), st.integers(0, 10**9))
delays = st.lists(st.integers(0, 5000), min_size=2, max_size=6)


@given(machines, machines, delays)
def test_the_interval_holds_the_peers_clock_whatever_the_delays(ours: Machine, theirs: Machine, under_way: list[int]) -> None:
    exchange(ours, PEERS[0], theirs, PEERS[1], 10, *under_way)
    least, most = ours.clocks._leads[PEERS[1]]
    assert least <= theirs.wall_ms - ours.steady_ms <= most


@given(machines, st.integers(-(10**8), 10**8), delays)
def test_a_clock_within_the_bound_never_differs(ours: Machine, off_ms: int, under_way: list[int]) -> None:
    theirs = Machine(ours.wall_ms + off_ms, 0)
    exchange(ours, PEERS[0], theirs, PEERS[1], 10, *under_way)
    differs = ours.clocks.differs(PEERS[1], ours.lead)
    assert not differs or abs(off_ms) > BOUND_MS
    assert differs or abs(off_ms) <= BOUND_MS + max(map(sum, pairwise(under_way)))


def compared(own_ms: int, others_ms: list[int], *, size: int) -> tuple[bool, Machine]:
    """Whether a clock may be used that is off by `own_ms`, among these other ones."""
    ours = Machine(10**9 + own_ms, 77)
    for peer, off_ms in zip(PEERS, others_ms, strict=False):
        exchange(ours, b"own", Machine(10**9 + off_ms, 5), peer, 10, 1, 1)
    least, most = ours.clocks.allowed(PEERS[: len(others_ms)], size=size)
    return least <= ours.lead <= most, ours


@pytest.mark.answers("wrong-clocks-issue-nothing")
@pytest.mark.parametrize("off_ms", [3_600_000, -3_600_000, 1100, -1100])
def test_a_clock_that_a_majority_contradicts_is_wrong(off_ms: int) -> None:
    assert not compared(off_ms, [0, 0], size=3)[0]
    assert not compared(off_ms, [0, 0, 0], size=5)[0]


@pytest.mark.parametrize("off_ms", [900, -900, 0])
def test_a_clock_within_the_bound_is_right(off_ms: int) -> None:
    assert compared(off_ms, [0, 0], size=3)[0]


def test_of_two_clocks_neither_is_wrong_but_both_say_that_they_differ() -> None:
    right, ours = compared(3_600_000, [0], size=2)
    assert right
    assert ours.clocks.differs(PEERS[0], ours.lead)


def test_fewer_than_a_majority_prove_nothing() -> None:
    assert compared(3_600_000, [0], size=3)[0]
    assert compared(3_600_000, [0, 0], size=5)[0]
    assert compared(3_600_000, [], size=1)[0]


def test_of_clocks_that_all_differ_the_middle_one_is_right() -> None:
    assert compared(0, [3_600_000, -3_600_000], size=3)[0]
    assert not compared(3_600_000, [0, -3_600_000], size=3)[0]


def test_a_wrong_majority_wins() -> None:
    """Nothing in the cluster can tell. The right minority says by how much it differs, and from which nodes."""
    assert not compared(0, [3_600_000, 3_600_000], size=3)[0]


def test_words_heard_count_after_their_link_is_gone() -> None:
    _, ours = compared(0, [0, 0], size=3)
    for peer in PEERS[:2]:
        ours.clocks.began(peer)
    least, most = ours.clocks.allowed(PEERS[:2], size=3)
    assert least <= ours.lead <= most
    ours.wall_ms += 5000
    assert ours.lead > most


def test_a_node_that_is_gone_no_longer_counts() -> None:
    _, ours = compared(3_600_000, [0, 0], size=3)
    ours.clocks.forget(PEERS[0])
    assert ours.clocks.allowed(PEERS[:2], size=3) == ANY
    assert ours.clocks.lead_of(PEERS[0]) is None


def test_a_stamp_of_an_older_link_is_not_echoed() -> None:
    clocks = Clocks(skew_ms_max=BOUND_MS)
    clocks.heard(PEERS[0], Clock(5, 7), steady_ms=100)
    assert clocks.message(PEERS[0], wall_ms=9, steady_ms=130) == Clock(9, 130, 7, 30)
    clocks.began(PEERS[0])
    assert clocks.message(PEERS[0], wall_ms=9, steady_ms=130).echo_ms == NOT_HEARD


@given(st.integers(-5, 2**53), st.integers(0, 2**53 - 1), st.integers(-1, 2**53 - 2), st.integers(0, 2**53 - 1))
def test_no_echo_is_believed_that_cannot_be(wall_ms: int, steady_ms: int, echo_ms: int, held_ms: int) -> None:
    clocks = Clocks(skew_ms_max=BOUND_MS)
    clocks.heard(PEERS[0], Clock(wall_ms, steady_ms, echo_ms, held_ms), steady_ms=1000)
    known = clocks._leads.get(PEERS[0])
    assert known is None or (known[0] <= known[1] and echo_ms <= 1000)


@pytest.mark.parametrize("clock", [Clock(-1, 0), Clock(1 << 53, 0), Clock(0, -1), Clock(0, 0, -2), Clock(0, 0, 0, -1)])
def test_times_that_no_clock_shows_are_refused(clock: Clock) -> None:
    with pytest.raises(InvalidValue, match="impossible time"):
        decode(encode(clock))
