from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.operation import CHAIN_START, TIP_BYTES, Body, Readiness, Tip, chain, decode, encode, readiness
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import InvalidValue

A, B = Origin(b"a" * 16), Origin(b"b" * 16)

bodies = st.builds(
    Body,
    hlc=st.integers(0, 2**64 - 1),
    wall_ms=st.integers(0, 2**63),
    context=st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(1, 2**63))),
    key=st.none() | st.text(),
    payload=st.binary(),
)


@given(bodies)
def test_a_body_survives_its_encoding(body: Body) -> None:
    assert decode(encode(body)) == body


@given(st.binary())
def test_garbage_is_refused_with_a_typed_error(packed: bytes) -> None:
    with suppress(InvalidValue):
        decode(packed)


def test_the_chain_tells_histories_apart_that_end_alike() -> None:
    last = encode(Body(9, 9, [], None, b"last"))
    one = chain(chain(CHAIN_START, 7, Dot(A, 1), b"x"), 7, Dot(A, 2), last)
    other = chain(chain(CHAIN_START, 7, Dot(A, 1), b"y"), 7, Dot(A, 2), last)
    assert one != other


@pytest.mark.parametrize(("partition", "dot"), [(8, Dot(A, 1)), (7, Dot(B, 1)), (7, Dot(A, 2))])
def test_the_chain_binds_a_body_to_its_dot_and_partition(partition: int, dot: Dot) -> None:
    assert chain(CHAIN_START, partition, dot, b"x") != chain(CHAIN_START, 7, Dot(A, 1), b"x")


def test_a_tip_survives_its_packing() -> None:
    tip = Tip(3, 5, b"h" * 32)
    assert Tip.unpack(tip.pack()) == tip
    assert len(tip.pack()) == TIP_BYTES
    known = Tip(3, 5, b"h" * 32, known=True)
    assert Tip.unpack(known.pack()) == known


@pytest.mark.answers("updates-are-applied-out-of-causal-order")
@pytest.mark.parametrize(
    ("vector", "dot", "delta", "expected"),
    [
        ({}, Dot(A, 1), {}, Readiness.READY),
        ({A: 1}, Dot(A, 1), {}, Readiness.SEEN),
        ({A: 1}, Dot(A, 3), {}, Readiness.EARLY),
        ({A: 1}, Dot(A, 2), {B: 1}, Readiness.EARLY),
        ({A: 1, B: 1}, Dot(A, 2), {B: 1}, Readiness.READY),
    ],
)
def test_an_operation_is_ready_once_all_it_depends_on_is_there(
    vector: dict[Origin, int], dot: Dot, delta: dict[Origin, int], expected: Readiness
) -> None:
    assert readiness(VersionVector(vector), dot, list(delta.items())) is expected
