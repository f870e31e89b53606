"""Who is present: whose word counts, and what time does to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.presence.state import GONE, Awareness, ClientState, Topic

HERE = Topic("crew", "plan")
A, B = b"a", b"b"  # States.
TIMEOUT_S = 30.0


def table(*, entries_max: int = 100, bytes_max: int = 10_000) -> Awareness:
    return Awareness(timeout_s=TIMEOUT_S, entries_max=entries_max, bytes_max=bytes_max)


def test_an_entry_is_its_owners_alone() -> None:
    one = table()
    assert one.announce("s1", HERE, ClientState(7, 1, A), 0) is None
    assert one.announce("s2", HERE, ClientState(7, 5, B), 0) is None
    assert one.announce("s2", HERE, ClientState(7, 5, GONE), 0) is None
    assert one.entries(HERE) == [ClientState(7, 1, A)]


def test_the_newer_clock_counts_and_at_an_equal_one_who_is_gone() -> None:
    one = table()
    one.announce("s1", HERE, ClientState(7, 2, A), 0)
    one.announce("s1", HERE, ClientState(7, 1, B), 0)
    one.announce("s1", HERE, ClientState(7, 2, B), 0)
    assert one.entries(HERE) == [ClientState(7, 2, A)]
    one.announce("s1", HERE, ClientState(7, 2, GONE), 0)
    assert one.entries(HERE) == []


def test_an_echo_brings_nobody_back_and_its_sender_is_told() -> None:
    one = table()
    one.announce("s1", HERE, ClientState(7, 2, A), 0)
    assert one.leave("s1", 0) == [(HERE, ClientState(7, 2, GONE))]
    assert one.announce("s2", HERE, ClientState(7, 2, A), 0) == ClientState(7, 2, GONE)
    assert one.entries(HERE) == []
    assert one.announce("s2", HERE, ClientState(7, 3, A), 0) is None
    assert one.entries(HERE) == [ClientState(7, 3, A)]


def test_presence_that_is_not_renewed_is_later_forgotten() -> None:
    one = table()
    one.announce("s1", HERE, ClientState(7, 1, A), 0)
    one.announce("s1", HERE, ClientState(8, 1, A), 0)
    one.announce("s1", HERE, ClientState(8, 2, A), 20)
    assert one.expire(TIMEOUT_S) == [(HERE, ClientState(7, 1, GONE))]
    assert one.entries(HERE) == [ClientState(8, 2, A)]
    assert one.announce("s2", HERE, ClientState(7, 1, A), 31) == ClientState(7, 1, GONE)
    one.expire(2 * TIMEOUT_S)
    assert one.announce("s2", HERE, ClientState(7, 1, A), 2 * TIMEOUT_S) is None
    assert len(one) == 2


def test_nothing_is_left_of_who_left_once_the_time_is_over() -> None:
    one = table()
    one.announce("s1", HERE, ClientState(7, 1, A), 0)
    one.leave("s1", 0)
    one.expire(TIMEOUT_S)
    assert len(one) == 0
    assert one.has_room(HERE, 1, 8_750)


def test_anothers_presence_counts_unless_it_is_ours() -> None:
    one = table()
    assert one.hear(b"n2", HERE, ClientState(7, 1, A), 0)
    assert not one.hear(b"n2", HERE, ClientState(7, 1, A), 20)
    assert one.expire(TIMEOUT_S) == [], "said again, it is renewed"
    assert one.hear(b"n2", HERE, ClientState(7, 1, GONE), 21)
    one.announce("s1", HERE, ClientState(8, 1, A), 21)
    assert not one.hear(b"n2", HERE, ClientState(8, 9, B), 21)
    assert one.entries(HERE) == [ClientState(8, 1, A)]
    assert list(one.own()) == [(HERE, ClientState(8, 1, A))]


def test_a_client_of_another_node_moves_with_newer_clock() -> None:
    one = table()
    one.hear(b"n2", HERE, ClientState(7, 3, A), 0)
    one.announce("echo", HERE, ClientState(7, 3, A), 0)
    assert list(one.own()) == []
    one.announce("s1", HERE, ClientState(7, 4, B), 0)
    assert list(one.own()) == [(HERE, ClientState(7, 4, B))]
    assert not one.hear(b"n2", HERE, ClientState(7, 3, GONE), 0), "as the node says that it left, when it notices"


def test_it_is_bounded_in_entries_and_bytes() -> None:
    one = table(entries_max=2, bytes_max=10)
    for client in range(5):
        one.announce("s1", HERE, ClientState(client, 1, b"xxxx"), 0)
        one.hear(b"n2", HERE, ClientState(client + 10, 1, b"x"), 0)
    assert len(one.entries(HERE)) == 2
    one.announce("s1", HERE, ClientState(0, 2, b"x" * 10), 0)
    assert one.entries(HERE)[0].clock == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["s1", "s2", "n2", "n3"]), st.integers(1, 3), st.integers(0, 4), st.sampled_from([A, B, GONE])
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_once_nobody_renews_everything_is_forgotten_and_every_byte_is_free(
    said: list[tuple[str, int, int, bytes]], leaves: int
) -> None:
    one = table()
    for number, (who, client, clock, state) in enumerate(said):
        if who.startswith("s"):
            one.announce(who, HERE, ClientState(client, clock, state), number)
        else:
            one.hear(who.encode(), HERE, ClientState(client, clock, state), number)
        if number % 4 == leaves:
            one.leave("s1", number)
    one.expire(len(said) + TIMEOUT_S)
    assert one.entries(HERE) == []
    one.expire(len(said) + 2 * TIMEOUT_S)
    assert (len(one), one.has_room(HERE, 1, 8_750)) == (0, True)


def test_no_space_fills_the_room() -> None:
    one, other = table(), Topic("other", "")
    number = 0
    for document in "abcd":
        while one.has_room(topic := Topic("crew", document), number, 100) and number % 100 < 99:
            one.announce("s1", topic, ClientState(number, 1, bytes(100)), 0)
            number += 1
    assert 80 < number < 90
    assert one.has_room(other, 1, 1000)
    assert one.count("crew") == number
    assert one.count("other") == 0
