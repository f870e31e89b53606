"""Beginnings: equal ones are one, and of different ones the same one counts, in whatever order they come."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import BadOperation, InvalidValue
from shoal.kinds.document.state import document, genesis, yjs
from shoal.kinds.document.state.document import Update
from shoal.kinds.document.state.live import EMPTY, LiveDocument
from tests.support.examples import examples
from tests.support.rows import DictRows

PLAIN = st.one_of(st.none(), st.integers(-9, 9), st.text("aé", max_size=3))
JSON = st.recursive(
    PLAIN, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from("ab"), inside, max_size=2)
)
CONTENT = st.fixed_dictionaries(
    {},
    optional={
        "m": st.dictionaries(st.sampled_from("xy"), JSON, max_size=2),
        "l": st.lists(JSON, max_size=3),
        "t": st.text("aé", max_size=4),
        "either": st.one_of(st.lists(PLAIN, min_size=1, max_size=2), st.text("b", min_size=1, max_size=2)),
    },
)

Operation = tuple[Stamp, Update, bytes]


def operation(number: int, content: Any, *, origin: int) -> Operation:
    made = genesis.begin(content, 0)
    stamp = Stamp(Dot(Origin(bytes([origin + 1]) * 16), 1), number + 1, 0, VersionVector())
    return stamp, Update(hashlib.sha256(made.update).digest(), made.roots, genesis=made.digest), made.update


def built(rows: DictRows) -> LiveDocument:
    updates = [update for _, update in document.updates(rows)]
    return LiveDocument(
        bytes_max=1 << 20, roots_max=16, updates=[*updates, document.withdrawn(rows)], roots=document.roots(rows)
    )


def one_counts(contents: list[Any], rng: Any) -> None:
    origins = rng.sample(range(len(contents)), len(contents))  # Neither the first nor the last has the least dot.
    operations = [operation(number, content, origin=origins[number]) for number, content in enumerate(contents)]
    one, other = DictRows(), DictRows()
    for each in operations:
        document.apply(one, *each)
    for each in rng.sample(operations, len(operations)) + operations[:1]:
        document.apply(other, *each)
    assert one.canonical() == other.canonical()
    counts = min(contents, key=lambda content: genesis.begin(content, 0).digest)
    shown = {name: value for name, value in built(one).to_json().items() if value}
    assert shown == {name: value for name, value in json.loads(json.dumps(counts)).items() if value}


@examples(80)
@given(st.lists(CONTENT, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_the_one_with_the_least_hash_counts_and_nothing_doubles(contents: list[Any], rng: Any) -> None:
    one_counts(contents, rng)


@pytest.mark.answers("seed-11196")
def test_a_beginning_that_lost_decides_no_kind_whichever_of_its_makers_has_the_least_dot() -> None:
    lesser, greater = sorted(({"r": "x"}, {"r": [1]}), key=lambda content: genesis.begin(content, 0).digest)
    rows = DictRows()
    for number, (content, origin) in enumerate(((greater, 1), (greater, 0), (lesser, 2))):
        document.apply(rows, *operation(number, content, origin=origin))
    assert built(rows).to_json() == lesser


@pytest.mark.answers("seed-11196")
def test_a_beginning_is_known_as_soon_as_one_of_its_makers_is() -> None:
    lesser, greater = sorted(({"l": [1]}, {"l": [2]}), key=lambda content: genesis.begin(content, 0).digest)
    rows, operations = DictRows(), [operation(number, greater, origin=number) for number in range(2)]
    operations.append(operation(2, lesser, origin=2))
    for each in operations:
        document.apply(rows, *each)
    for maker, _, _ in operations[:2]:
        seen = {maker.pack_position(), operations[2][0].pack_position()}
        assert len(document.lost_geneses(rows, known=seen.__contains__)) == 1


def test_of_two_that_claim_one_hash_the_first_says_what_the_beginning_is_on_every_replica() -> None:
    first, second = operation(0, {"r": "x"}, origin=1), operation(1, {"r": [1, 2]}, origin=0)
    claimed = second[0], msgspec.structs.replace(second[1], genesis=first[1].genesis), second[2]
    one, other = DictRows(), DictRows()
    for rows, order in ((one, (first, claimed)), (other, (claimed, first))):
        for each in order:
            document.apply(rows, *each)
    assert one.canonical() == other.canonical()
    assert document.begun_with(one) == {first[1].genesis: {"r": "text"}}


def test_a_beginning_that_is_not_withdrawn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "withdrawn", lambda rows: EMPTY)
    with pytest.raises(AssertionError):
        one_counts([{"l": [1]}, {"l": [2]}], Random(1))


def test_equal_content_is_the_same_update_and_another_generation_is_another() -> None:
    content = {"m": {"b": [1, {"y": 1, "x": None}], "a": "é"}, "t": "x"}
    mixed = {"t": "x", "m": {"a": "é", "b": [1, {"x": None, "y": 1}]}}
    assert genesis.begin(content, 3) == genesis.begin(mixed, 3)
    assert genesis.begin(content, 3).client_id != genesis.begin(content, 4).client_id


def test_a_lesser_hash_makes_a_greater_client_id() -> None:
    digests = [hashlib.sha256(bytes([n])).digest() for n in range(50)]
    assert sorted(digests) == sorted(digests, key=genesis.client_of, reverse=True)


def test_a_genesis_of_another_clients_edits_is_refused() -> None:
    made, other = genesis.begin({"l": [1]}, 0), genesis.begin({"l": [2]}, 0)
    genesis.check(made.digest, yjs.parse(made.update))
    for digest, update in ((made.digest, other.update), (b"short", made.update)):
        with pytest.raises(BadOperation):
            genesis.check(digest, yjs.parse(update))


@pytest.mark.parametrize("content", [[], {"m": 1}, {"m": {"x": 2**60}}])
def test_malformed_content_is_refused(content: Any) -> None:
    with pytest.raises(InvalidValue):
        genesis.begin(content, 0)
