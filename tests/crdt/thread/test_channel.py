from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kinds.thread.state import channel
from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state.channel import (
    DEPTH_MAX,
    TINY_BYTES_MAX,
    Draft,
    Recipe,
    Shape,
    draft,
    extend,
    hash_of,
    header_bytes,
    outline_of,
)
from shoal.kinds.thread.state.chunking import CHUNK_BYTES_MAX, cuts
from tests.support.examples import examples

RANDOM = Random(3)
POOL = [RANDOM.randbytes(RANDOM.randrange(10, 3000)) for _ in range(60)]


class Store:
    """Checkpoints of one channel, and the rows they brought."""

    def __init__(self) -> None:
        self.recipes: dict[bytes, Recipe] = {}
        self.rows: dict[bytes, bytes] = {}
        self.written = 0
        self.last = b""

    def save(self, packed: bytes, base: Shape | None) -> tuple[bytes, Shape]:
        """`base` is the shape that the last save returned, if any."""
        return self.keep(draft(packed, base, self.last))

    def append(self, elements: list[bytes], base: Shape) -> tuple[bytes, Shape]:
        drafted = extend(msgspec.msgpack.encode(elements), base, self.last)
        assert drafted is not None
        return self.keep(drafted)

    def keep(self, drafted: Draft) -> tuple[bytes, Shape]:
        recipe = drafted.recipe
        named = {*recipe.added, *recipe.nodes}
        assert named >= drafted.rows.keys()
        assert self.rows.keys() >= named - drafted.rows.keys()
        id = len(self.recipes).to_bytes(32, "big", signed=False) if self.recipes else b"\xff" * 32
        self.recipes[id] = recipe
        self.written += len(msgspec.msgpack.encode(recipe)) + sum(
            len(piece) for digest, piece in drafted.rows.items() if digest not in self.rows
        )
        self.rows.update(drafted.rows)
        self.last = id
        return id, drafted.shape

    def load(self, id: bytes) -> bytes:
        recipe = self.recipes[id]
        outline = outline_of(recipe, self.recipes.get)
        assert outline is not None
        assert channel.is_sound(recipe, self.recipes.get)
        digests = list(tree.leaves(outline.tops, self.rows.__getitem__))
        value = recipe.header + b"".join(self.rows[digest] for digest in digests) + outline.tail
        assert hash_of(recipe.header, outline.tops, outline.tail) == recipe.hash
        assert len(value) == recipe.size
        return value

    def outline(self, id: bytes) -> channel.Outline:
        found = outline_of(self.recipes[id], self.recipes.get)
        assert found is not None
        return found

    def cold(self, id: bytes) -> Shape:
        """What the records alone tell."""
        shape = channel.sketch(self.recipes[id])
        outline = outline_of(self.recipes[shape.home or id], self.recipes.get)
        return msgspec.structs.replace(shape, outline=outline)


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
@examples(80)
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


@pytest.mark.answers("log-of-a-growing-list-costs-its-length")
@given(edits)
@examples(80)
def test_only_new_chunks_of_a_longer_list_are_read(
    history: list[tuple[str, int, int]],
) -> None:
    store = Store()
    shape: Shape | None = None
    blobs: list[bytes] = []
    old: tuple[list[bytes], bytes] | None = None
    for edit in history:
        blobs = edited(blobs, edit)
        id, shape = store.save(msgspec.msgpack.encode(blobs), shape)
        if old is not None:
            before, old_id = old
            known = list(tree.leaves(store.outline(old_id).tops, store.rows.__getitem__))
            new = set(tree.leaves(store.outline(id).tops, store.rows.__getitem__, skip=len(known)))
            more = channel.continued(
                store.recipes[id].header,
                store.outline(id),
                store.recipes[old_id].header,
                store.outline(old_id),
                {digest: row for digest, row in store.rows.items() if digest in new or digest not in known}.__getitem__,
            )
            if blobs[: len(before)] == before:
                assert more is not None
                assert (more[0], msgspec.msgpack.decode(more[1])) == (len(before), blobs[len(before) :])
            else:
                assert more is None
        old = blobs, id


@pytest.mark.parametrize("fanout", [2, tree.FANOUT])
@given(history=edits, random=st.randoms(use_true_random=False))
@examples(80)
def test_a_history_loads_whatever_is_known_of_what_it_builds_on(
    fanout: int, history: list[tuple[str, int, int]], random: Random
) -> None:
    """Each save is drafted against the whole value, its records alone, or nothing; appends with or without the old value."""
    check_history(fanout, history, random)


def check_history(fanout: int, history: list[tuple[str, int, int]], random: Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "FANOUT", fanout)
        _check_history(history, random)


def _check_history(history: list[tuple[str, int, int]], random: Random) -> None:
    store, saved = Store(), {}
    blobs: list[bytes] = []
    id, shape = store.save(msgspec.msgpack.encode(blobs), None)
    for edit in history:
        before, blobs = blobs, edited(blobs, edit)
        packed = msgspec.msgpack.encode(blobs)
        known = random.choice([shape, shape, store.cold(id)])
        if len(blobs) == len(before) + 1 and blobs[:-1] == before and random.random() < 0.7:
            id, shape = store.append(blobs[-1:], known)
        else:
            id, shape = store.save(packed, random.choice([known, known, None]))
        saved[id] = packed
        fresh = draft(packed)
        assert (shape.hash, shape.header, shape.outline, shape.size) == (
            fresh.shape.hash,
            fresh.shape.header,
            fresh.shape.outline,
            len(packed),
        )
        assert shape.pieces is None or shape.pieces == fresh.shape.pieces
    assert {id: store.load(id) for id in saved} == saved


tree_grown, channel_ends = tree.grown, channel._ends

PLANTED: dict[str, tuple[object, str, object]] = {
    "a node of the tree is not written": (tree, "grown", lambda tops, digests: (tree_grown(tops, digests)[0], {})),
    "an append looks for cuts too late": (
        channel,
        "cuts",
        lambda data, start=0, *, settled=0: cuts(data, start, settled=settled + 200 * (settled > start)),
    ),
    "a chunk more is taken for kept": (channel, "_kept", lambda packed, at, chunks: (len(chunks), at + sum(map(len, chunks)))),
    "the end is taken for the same a chunk too early": (
        channel,
        "_ends",
        lambda packed, at, chunks, tail: {
            place: left + 1 for place, left in channel_ends(packed, at, chunks, tail).items() if left
        },
    ),
    "a header counts one element": (channel, "_array_header", lambda count: b"\x91"),
}


@given(history=edits, random=st.randoms(use_true_random=False))
@settings(max_examples=80)
def hunt(history: list[tuple[str, int, int]], random: Random) -> None:
    check_history(2, history, random)


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_bug_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, planted = PLANTED[what]
    monkeypatch.setattr(module, name, planted)
    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        hunt()


def test_chains_are_bounded() -> None:
    store = Store()
    shape: Shape | None = None
    blobs: list[bytes] = []
    for turn in range(5 * DEPTH_MAX):
        blobs = [*blobs, POOL[turn % 60]]
        _, shape = store.save(msgspec.msgpack.encode(blobs), shape)
    depths = [recipe.depth for recipe in store.recipes.values()]
    assert max(depths) == DEPTH_MAX


def test_chains_of_a_growing_tail_are_bounded() -> None:
    store = Store()
    _, shape = store.save(msgspec.msgpack.encode([bytes(100)]), None)
    for _ in range(2 * DEPTH_MAX):
        _, shape = store.append([b"x"], shape)
    assert max(recipe.depth for recipe in store.recipes.values()) == DEPTH_MAX


@pytest.mark.answers("whole-history-is-stored-again-at-each-step")
@pytest.mark.parametrize("turns", [1000, pytest.param(3000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("whole", [True, False])
def test_a_growing_list_writes_each_byte_about_twice(whole: bool, turns: int) -> None:
    store = Store()
    _, shape = store.save(b"\x90", None)
    blobs: list[bytes] = []
    new = 0
    for turn in range(turns):
        blobs.append(Random(turn).randbytes(600))
        new += 600
        _, shape = store.save(msgspec.msgpack.encode(blobs), shape) if whole else store.append(blobs[-1:], shape)
    # Once in a tail and once in a chunk; a hundred for a recipe's hashes, and each `DEPTH_MAX` saves the tail and the tops.
    assert store.written < 2 * new + turns * 200 + turns / DEPTH_MAX * (5000 + 2 * tree.FANOUT * 32)


@pytest.mark.parametrize("at", [0, 500, 999])
@pytest.mark.parametrize("kind", ["replaced", "inserted", "removed"])
def test_a_small_change_anywhere_writes_and_hashes_only_what_changed(
    at: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    blobs = [Random(n).randbytes(1000) for n in range(1000)]
    _, shape = store.save(msgspec.msgpack.encode(blobs), None)
    before = store.written
    blobs[at : at + (kind != "inserted")] = [] if kind == "removed" else [b"x" * 100]
    hashed: list[int] = []

    def counted(data: bytes) -> object:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(channel, "sha256", counted)
    id, _ = store.save(packed := msgspec.msgpack.encode(blobs), shape)
    assert sum(hashed) < 3 * CHUNK_BYTES_MAX + len(packed) // 500
    assert store.written - before < 3 * CHUNK_BYTES_MAX + len(packed) // 40  # The names of all chunks, and the tree over them.
    assert store.load(id) == packed


def test_an_append_reads_neither_the_value_nor_the_list_of_its_chunks() -> None:
    store = Store()
    id, shape = store.save(msgspec.msgpack.encode([Random(n).randbytes(1000) for n in range(2000)]), None)
    outline = store.cold(id).outline
    assert outline is not None
    assert len(outline.tail) < CHUNK_BYTES_MAX
    assert sum(map(len, outline.tops)) < 2 * tree.FANOUT
    _, grown = store.append([b"new"], store.cold(id))
    assert grown.hash == store.append([b"new"], shape)[1].hash


def test_only_a_list_is_extended() -> None:
    for value in ({"a": 1}, "text", 7, None):
        assert extend(b"\x91\x01", draft(msgspec.msgpack.encode(value)).shape, b"") is None


@pytest.mark.parametrize("count", [0, 14, 15, 16, 65534, 65535, 65536])
def test_the_header_of_a_list_counts_what_is_appended(count: int) -> None:
    shape = draft(msgspec.msgpack.encode([None] * count)).shape
    drafted = extend(msgspec.msgpack.encode([None, None]), shape, b"h" * 32)
    assert drafted is not None
    assert drafted.shape.header == draft(msgspec.msgpack.encode([None] * (count + 2))).shape.header


def test_an_unchanged_value_points_at_where_it_changed_last() -> None:
    store = Store()
    packed = msgspec.msgpack.encode([POOL[0], bytes(5000)])
    first, shape = store.save(packed, None)
    for _ in range(3):
        id, shape = store.save(packed, shape)
        assert store.recipes[id].base == first
        assert store.recipes[id].points


def test_a_missing_base_is_noticed() -> None:
    store = Store()
    shape: Shape | None = None
    blobs = [bytes([n]) * 3000 for n in range(8)]
    for size in (6, 8):
        id, shape = store.save(msgspec.msgpack.encode(blobs[:size]), shape)
    assert outline_of(store.recipes[id], lambda _: None) is None


def test_a_chain_that_never_ends_is_refused() -> None:
    recipe = Recipe(b"h" * 32, 5, b"", base=b"b" * 32, keep=True, depth=1)
    assert outline_of(recipe, lambda _: recipe) is None


def test_a_recipe_with_something_that_does_not_count_is_not_sound() -> None:
    store = Store()
    id, shape = store.save(msgspec.msgpack.encode([Random(n).randbytes(1000) for n in range(300)]), None)
    grown, _ = store.append([Random(0).randbytes(9000)], shape)
    for each in (id, grown):
        recipe = store.recipes[each]
        assert channel.is_sound(recipe, store.recipes.get)
        for change in ({"nodes": (bytes(32), *recipe.nodes)}, {"added": recipe.added[1:]}, {"tail": b"x"}, {"depth": 40}):
            assert not channel.is_sound(msgspec.structs.replace(recipe, **change), store.recipes.get), change


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
    assert header_bytes(msgspec.msgpack.encode(value)) == header


@pytest.mark.parametrize("size", [0, TINY_BYTES_MAX, TINY_BYTES_MAX + 1, 1000])
def test_a_small_value_is_inline_and_only_a_tiny_one_is_written_again(size: int) -> None:
    store = Store()
    first, shape = store.save(b"x" * size, None)
    again, _ = store.save(b"x" * size, shape)
    assert store.rows == {}
    assert store.recipes[first].tail == b"x" * size
    assert store.recipes[again].base == (first if size > TINY_BYTES_MAX else b"")
    assert store.load(again) == b"x" * size
