"""Keyrings: the file's lines, and neighbouring steps of a change that take each other."""

from __future__ import annotations

from itertools import product

import pytest

from shoal.cluster.handshake import ACCEPTED, Accepting, Dialling, Side
from shoal.cluster.peering import Identity
from shoal.errors import InvalidConfig, PeerRefused
from shoal.transport.keyring import Keyring, name_of, parsed, strangers

OLD, NEW, THIRD = "an old key of the nodes, 1", "another key of the nodes 2", "a third key of the nodes 33"
STEPS = [Keyring(OLD), Keyring(OLD, new=NEW), Keyring(NEW, old=OLD), Keyring(NEW)]


def side(ring: Keyring, number: int) -> Side:
    identity = Identity(bytes([number]) * 16, f"n{number}:7400", "shoal 1", opening=bytes([number]) * 16)
    return Side(identity, "crew", ring.key.encode(), "0.14.13", tuple(key.encode() for key in ring.also))


def meet(near: Keyring, far: Keyring) -> tuple[str, str]:
    """The keys that the dialler and the acceptor proved."""
    dialler, acceptor = Dialling(side(near, 1), nonce=b"1" * 32), Accepting(side(far, 2), nonce=b"2" * 32)
    acceptor.proven(dialler.welcomed(acceptor.greeted(dialler.hello)))
    dialler.accepted(ACCEPTED)
    return acceptor.proven_key.decode(), dialler.proven_key.decode()


@pytest.mark.parametrize(("near", "far"), [(a, b) for a, b in product(range(4), range(4)) if abs(a - b) <= 1])
def test_nodes_of_neighbouring_steps_take_each_other(near: int, far: int) -> None:
    assert meet(STEPS[near], STEPS[far]) == (STEPS[near].key, STEPS[far].key)


@pytest.mark.parametrize(("near", "far"), [(0, 2), (2, 0), (0, 3), (3, 0), (1, 3), (3, 1)])
def test_nodes_that_are_two_steps_apart_refuse_each_other(near: int, far: int) -> None:
    with pytest.raises(PeerRefused) as refused:
        meet(STEPS[near], STEPS[far])
    assert refused.value.detail["reason"] == "key"


def test_the_steps_lead_from_one_key_to_the_other() -> None:
    first = STEPS[0].begun(NEW)
    assert [first, first.next, first.next and first.next.next] == STEPS[1:]
    assert STEPS[0].next is STEPS[3].next is None


@pytest.mark.parametrize("ring", STEPS)
def test_a_file_holds_what_was_written(ring: Keyring) -> None:
    assert parsed(ring.text) == ring
    assert parsed(f"# of the crew\n\n  {ring.text}") == ring


def test_names_tell_keys_apart_and_hold_none() -> None:
    named = STEPS[1].names
    assert named == [name_of(OLD), f"new {name_of(NEW)}"]
    assert STEPS[2].names == [name_of(NEW), f"old {name_of(OLD)}"]
    assert OLD not in str(named)
    assert Keyring("").names == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key that is proven"),
        (f"new {NEW}\n", "no key that is proven"),
        ("secret\n", "too weak"),
        (f"{OLD.replace(' ', '-')}\nnew aaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", "too weak"),
        (f"{'0123456789abcdefghij'}\nnew 0123456789abcdefghij\n", "the same key twice"),
        ("0123456789abcdefghij\n9876543210abcdefghij\n", "two keys of one kind"),
        ("0123456789abcdefghij\nnext 9876543210abcdefghij\n", "two keys of one kind"),
        ("0123456789abcdefghij\nnew 9876543210abcdefghij\nold 9876543210zyxwvutsrq\n", "more than two keys"),
    ],
)
def test_a_wrong_file_is_refused_and_not_shown(text: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=why) as refused:
        parsed(text)
    assert not any(word in str(refused.value) for word in text.split() if len(word) > 4)


def test_a_new_key_must_be_strong_and_another_one() -> None:
    for new in ("weak", OLD):
        with pytest.raises(InvalidConfig):
            STEPS[0].begun(new)


def test_members_that_could_not_be_linked_are_strangers() -> None:
    members = {f"n{number}": ring.names for number, ring in enumerate([*STEPS, Keyring(THIRD), Keyring("")])}
    assert strangers(STEPS[0], members) == ["n2", "n3", "n4", "n5"]
    assert strangers(STEPS[2], members) == ["n0", "n4", "n5"]
