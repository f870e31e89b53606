from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state.chunking import FANOUT, Tops
from tests.support.examples import examples

LEAVES = [sha256(str(n).encode()).digest() for n in range(2 * FANOUT * FANOUT + 100)]


@given(st.lists(st.integers(0, 400), max_size=6))
@examples(60)
def test_the_tops_do_not_depend_on_how_the_list_grew(steps: list[int]) -> None:
    tops: Tops = ()
    nodes: dict[bytes, bytes] = {}
    at = 0
    for step in steps:
        tops, made = tree.grown(tops, LEAVES[at : at + step])
        nodes |= made
        at = min(at + step, len(LEAVES))
    assert (tops, nodes) == tree.grown((), LEAVES[:at])
    assert list(tree.leaves(tops, nodes.__getitem__)) == LEAVES[:at]
    assert tree.count(tops) == at


@given(st.integers(0, len(LEAVES)), st.integers(0, len(LEAVES) + 5))
def test_the_end_of_a_list_is_read_without_the_nodes_before_it(size: int, skip: int) -> None:
    tops, nodes = tree.grown((), LEAVES[:size])
    read: list[bytes] = []

    def node(digest: bytes) -> bytes:
        read.append(digest)
        return nodes[digest]

    assert list(tree.leaves(tops, node, skip=skip)) == LEAVES[skip:size]
    assert len(read) <= max(0, size - skip) // FANOUT + 4


@pytest.mark.parametrize("size", [1, FANOUT - 1, FANOUT, FANOUT + 1, FANOUT * FANOUT, len(LEAVES)])
def test_a_list_is_described_by_few_digests(size: int) -> None:
    tops, nodes = tree.grown((), LEAVES[:size])
    assert all(len(level) < FANOUT for level in tops)
    assert len(tops) <= 3
    assert len(nodes) == size // FANOUT + size // FANOUT**2


def test_lists_that_differ_anywhere_have_other_tops() -> None:
    tops, _ = tree.grown((), LEAVES)
    for at in (0, FANOUT, len(LEAVES) - 1):
        changed = [*LEAVES[:at], bytes(32), *LEAVES[at + 1 :]]
        assert tree.grown((), changed)[0] != tops
