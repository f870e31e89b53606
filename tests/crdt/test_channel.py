from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.crdt import channel
from shoal.crdt.channel import DEPTH_MAX, Recipe, Shape, digests_of, draft, hash_of, inline_of, split

RANDOM = Random(3)
POOL = [RANDOM.randbytes(RANDOM.randrange(10, 3000)) for _ in range(60)]


class Store:
    """Checkpoints of one channel, and the chunks they brought."""

    def __init__(self) -> None:
        self.recipes: dict[bytes, Recipe] = {}
        self.chunks: dict[bytes, bytes] = {}
        self.written = 0
        self.last = b""

    def save(self, packed: bytes, base: Shape | None) -> tuple[bytes, Shape]:
        """`base` is the shape that the last save returned, if any."""
        drafted = draft(packed, base, self.last)
        id = len(self.recipes).to_bytes(32, "big", signed=False) if self.recipes else b"\xff" * 32
        self.recipes[id] = drafted.recipe
        self.written += len(msgspec.msgpack.encode(drafted.recipe)) + sum(
            len(piece) for digest, piece in drafted.chunks.items() if digest not in self.chunks
        )
        self.chunks.update(drafted.chunks)
        self.last = id
        return id, drafted.shape

    def load(self, id: bytes) -> bytes:
        recipe = self.recipes[id]
        digests = digests_of(recipe, self.recipes.get)
        assert digests is not None
        body = b"".join(self.chunks[digest] for digest in digests) if digests else inline_of(recipe, self.recipes.get)
        assert body is not None
        assert hash_of(recipe.header, body, digests) == recipe.hash
        return recipe.header + body


# An edit of a list of blobs: append, drop the last, replace one, insert one, clear, keep.
edits = st.lists(st.tuples(st.sampled_from("aaaaadrikc"), st.integers(0, 59), st.integers(0, 59)), max_size=60)


def edited(blobs: list[bytes], edit: tuple[str, int, int]) -> list[bytes]:
    what, where, which = edit
    at = where % (len(blobs) + 1)
    match what:
        case "a":
            return [*blobs, POOL[which]]
        case "d":
            return blobs[:-1]
        case "r":
            return [*blobs[:at], POOL[which], *blobs[at + 1 :]]
        case "i":
            return [*blobs[:at], POOL[which], *blobs[at:]]
        case "c":
            return []
    return blobs


@given(edits)
@settings(max_examples=80)
def test_every_checkpoint_of_a_history_loads_as_it_was_saved(history: list[tuple[str, int, int]]) -> None:
    store, saved = Store(), {}
    shape: Shape | None = None
    blobs: list[bytes] = []
    for edit in history:
        blobs = edited(blobs, edit)
        packed = msgspec.msgpack.encode(blobs)
        id, shape = store.save(packed, shape)
        saved[id] = packed
    assert {id: store.load(id) for id in saved} == saved


@given(edits)
@settings(max_examples=40)
def test_the_hash_depends_on_the_value_alone(history: list[tuple[str, int, int]]) -> None:
    store = Store()
    shape: Shape | None = None
    blobs: list[bytes] = []
    for edit in history:
        blobs = edited(blobs, edit)
        packed = msgspec.msgpack.encode(blobs)
        _, shape = store.save(packed, shape)
        fresh = draft(packed, None, b"").recipe
        assert (shape.hash, shape.header, shape.body) == (fresh.hash, fresh.header, split(packed)[1])


def test_chains_are_bounded() -> None:
    store = Store()
    shape: Shape | None = None
    blobs: list[bytes] = []
    for turn in range(5 * DEPTH_MAX):
        blobs = [*blobs, POOL[turn % 60]]
        _, shape = store.save(msgspec.msgpack.encode(blobs), shape)
    depths = [recipe.depth for recipe in store.recipes.values()]
    assert max(depths) == DEPTH_MAX


def test_a_growing_list_is_not_written_again() -> None:
    store = Store()
    shape: Shape | None = None
    blobs: list[bytes] = []
    new = 0
    for turn in range(500):
        blobs = [*blobs, Random(turn).randbytes(2000)]
        new += 2000
        _, shape = store.save(msgspec.msgpack.encode(blobs), shape)
    # Each append rewrites the last chunk, which is half a chunk on average.
    assert store.written < 4.5 * new


def test_an_unchanged_value_points_at_where_it_changed_last() -> None:
    store = Store()
    packed = msgspec.msgpack.encode([POOL[0], bytes(5000)])
    first, shape = store.save(packed, None)
    for _ in range(3):
        id, shape = store.save(packed, shape)
        assert store.recipes[id].base == first
        assert store.recipes[id].chunks == []


def test_a_missing_base_is_noticed() -> None:
    store = Store()
    shape: Shape | None = None
    blobs = [bytes([n]) * 3000 for n in range(8)]
    for size in (6, 8):
        id, shape = store.save(msgspec.msgpack.encode(blobs[:size]), shape)
    assert digests_of(store.recipes[id], lambda _: None) is None


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ([], 1),
        ([0] * 15, 1),
        ([0] * 16, 3),
        ({}, 1),
        ({str(n): n for n in range(16)}, 3),
        ("text", 0),
        (7, 0),
        (None, 0),
        (b"b", 0),
    ],
)
def test_the_header_of_a_collection_is_kept_apart(value: object, header: int) -> None:
    packed = msgspec.msgpack.encode(value)
    assert split(packed) == (packed[:header], packed[header:])


@pytest.mark.parametrize("size", [0, channel.TINY_BYTES_MAX, channel.TINY_BYTES_MAX + 1, channel.INLINE_BYTES_MAX])
def test_a_small_value_is_inline_and_only_a_tiny_one_is_written_again(size: int) -> None:
    store = Store()
    first, shape = store.save(b"x" * size, None)
    again, _ = store.save(b"x" * size, shape)
    assert store.chunks == {}
    assert store.recipes[first].inline == b"x" * size
    assert store.recipes[again].base == (first if size > channel.TINY_BYTES_MAX else b"")
    assert store.load(again) == b"x" * size


def test_a_missing_checkpoint_that_has_an_inline_value_is_noticed() -> None:
    store = Store()
    _, shape = store.save(b"x" * 500, None)
    again, _ = store.save(b"x" * 500, shape)
    assert inline_of(store.recipes[again], lambda _: None) is None
