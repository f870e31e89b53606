from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin
from shoal.storage import keys
from shoal.storage.keys import Kind
from tests.support.examples import examples

# Names that try to forge separators, lengths and other tables' prefixes.
names = st.one_of(
    st.text(min_size=1, max_size=6), st.sampled_from(["a", "ab", "b", "a\x00", "\x00\x01", "\x00\x01a", "O", "/", "é", "ÿ"])
)
partitions = st.integers(0, 1023)
kinds = st.sampled_from(Kind)
rows = st.binary(max_size=6)
objects = st.tuples(partitions, kinds, names, names)
dots = st.builds(Dot, st.binary(min_size=16, max_size=16).map(Origin), st.integers(1, 2**64 - 1))


@given(objects, rows)
def test_an_object_key_splits_into_what_it_was_made_of(identity: tuple[int, Kind, str, str], row: bytes) -> None:
    assert keys.split_object(keys.object_rows(*identity) + row) == (*identity, row)


@pytest.mark.answers("injection-through-an-id")
@given(objects, rows, objects, rows)
def test_two_object_rows_never_share_a_key(
    one: tuple[int, Kind, str, str], row: bytes, other: tuple[int, Kind, str, str], other_row: bytes
) -> None:
    same_key = keys.object_rows(*one) + row == keys.object_rows(*other) + other_row
    assert same_key == ((one, row) == (other, other_row))


@pytest.mark.answers("injection-through-an-id")
@given(objects, objects)
@examples(200)
def test_the_prefix_of_an_object_never_meets_rows_of_another(
    one: tuple[int, Kind, str, str], other: tuple[int, Kind, str, str]
) -> None:
    assert keys.object_rows(*one).startswith(keys.object_rows(*other)) == (one == other)


@given(partitions, dots)
def test_a_log_key_splits_into_partition_and_dot(partition: int, dot: Dot) -> None:
    assert keys.split_log(keys.log(partition, dot)) == (partition, dot)


@given(st.tuples(partitions, dots), st.tuples(partitions, dots))
def test_log_keys_are_in_the_order_of_partition_origin_and_sequence(one: tuple[int, Dot], other: tuple[int, Dot]) -> None:
    assert (keys.log(*one) < keys.log(*other)) == (one < other)


@pytest.mark.answers("id-contains-a-separator")
@given(partitions, dots)
def test_a_log_key_lies_under_the_prefixes_of_its_partition_and_origin(partition: int, dot: Dot) -> None:
    key = keys.log(partition, dot)
    assert key.startswith(keys.log_of(partition))
    assert key.startswith(keys.log_of(partition, dot.origin))


@given(names, kinds, names)
def test_a_catalog_key_splits_into_space_kind_and_name(space: str, kind: Kind, name: str) -> None:
    assert keys.split_catalog(keys.catalog(space, kind, name)) == (space, kind, name)


@given(names, kinds, names, names)
def test_a_space_lists_its_names_in_byte_order(space: str, kind: Kind, one: str, other: str) -> None:
    assert (keys.catalog(space, kind, one) < keys.catalog(space, kind, other)) == (one.encode() < other.encode())


@pytest.mark.answers("id-contains-a-separator")
@given(names, names, kinds, names)
def test_the_catalog_of_a_space_holds_no_entry_of_another(space: str, other: str, kind: Kind, name: str) -> None:
    assert keys.catalog(other, kind, name).startswith(keys.catalog_of(space)) == (space == other)


@given(objects, objects)
def test_two_snapshots_never_share_a_key(one: tuple[int, Kind, str, str], other: tuple[int, Kind, str, str]) -> None:
    assert (keys.snapshot(*one) == keys.snapshot(*other)) == (one == other)


@given(partitions, st.text(min_size=1, max_size=8), partitions, st.text(min_size=1, max_size=8))
def test_two_request_keys_never_share_a_key(partition: int, key: str, other_partition: int, other: str) -> None:
    same = keys.request_key(partition, key) == keys.request_key(other_partition, other)
    assert same == ((partition, key) == (other_partition, other))


@given(objects, dots, st.text(max_size=6))
def test_tables_do_not_overlap(identity: tuple[int, Kind, str, str], dot: Dot, text: str) -> None:
    partition, kind, space, name = identity
    made = [
        keys.meta(text),
        keys.vector(partition, dot.origin),
        keys.log(partition, dot),
        keys.base(partition, dot.origin),
        keys.object_rows(*identity),
        keys.request_key(partition, text),
        keys.catalog(space, kind, name),
        keys.snapshot(*identity),
    ]
    assert len({key[:1] for key in made}) == len(made)


def test_a_name_is_preceded_by_its_length() -> None:
    assert keys.object_rows(1, Kind.THREAD, "ab", "c") != keys.object_rows(1, Kind.THREAD, "a", "bc")
    assert not keys.object_rows(1, Kind.THREAD, "a", "bc").startswith(keys.object_rows(1, Kind.THREAD, "a", "b"))
