"""Dots and version vectors: the algebra that causal delivery stands on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import DOT_BYTES, NOTHING_SEEN, Dot, Origin, VersionVector

origins = st.sampled_from([Origin(bytes([n]) * 16) for n in (0, 1, 7, 255)])
dots = st.builds(Dot, origins, st.integers(1, 2**64 - 1))
vectors = st.dictionaries(origins, st.integers(0, 6)).map(VersionVector)


def covered(vector: VersionVector) -> set[Dot]:
    """The obvious twin of a vector: every dot that it covers."""
    return {Dot(origin, sequence) for origin, last in vector.items() for sequence in range(1, last + 1)}


@given(dots)
def test_a_packed_dot_unpacks_to_itself(dot: Dot) -> None:
    assert len(dot.pack()) == DOT_BYTES
    assert Dot.unpack(dot.pack()) == dot


@given(dots, dots)
def test_packed_dots_sort_as_dots_do(one: Dot, other: Dot) -> None:
    assert (one.pack() < other.pack()) == (one < other)


@given(vectors, vectors)
def test_join_covers_what_either_covers(one: VersionVector, other: VersionVector) -> None:
    assert covered(one.join(other)) == covered(one) | covered(other)


@given(vectors, vectors, vectors)
def test_join_is_commutative_associative_and_idempotent(a: VersionVector, b: VersionVector, c: VersionVector) -> None:
    assert a.join(b) == b.join(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.join(a) == a


@given(vectors, vectors)
def test_a_vector_dominates_another_when_it_covers_all_that_the_other_does(one: VersionVector, other: VersionVector) -> None:
    assert one.dominates(other) == (covered(one) >= covered(other))


@given(vectors, st.builds(Dot, origins, st.integers(1, 8)))
def test_a_vector_covers_a_dot_when_its_prefix_reaches_it(vector: VersionVector, dot: Dot) -> None:
    assert vector.covers(dot) == (dot in covered(vector))


@given(vectors, origins)
def test_advance_adds_the_next_dot_and_no_other(vector: VersionVector, origin: Origin) -> None:
    dot = Dot(origin, vector[origin] + 1)
    assert covered(vector.advance(dot)) == covered(vector) | {dot}


@given(vectors, origins, st.integers(0, 9))
def test_advance_refuses_a_dot_that_would_leave_a_hole_or_repeat(vector: VersionVector, origin: Origin, sequence: int) -> None:
    if sequence != vector[origin] + 1:
        with pytest.raises(ValueError, match="does not follow"):
            vector.advance(Dot(origin, sequence))


@given(vectors, vectors)
def test_missing_lists_what_we_cover_and_they_lack(ours: VersionVector, theirs: VersionVector) -> None:
    missing = {Dot(origin, sequence) for origin, ranges in ours.missing(theirs).items() for sequence in ranges}
    assert missing == covered(ours) - covered(theirs)


@given(vectors, vectors)
def test_an_older_vector_joined_with_what_changed_since_is_the_newer(older: VersionVector, more: VersionVector) -> None:
    newer = older.join(more)
    delta = newer.since(older)
    assert older.join(delta) == newer
    assert all(older[origin] != sequence for origin, sequence in delta.items())


@given(vectors)
def test_zero_entries_are_as_good_as_none(vector: VersionVector) -> None:
    assert VersionVector({**vector, Origin(b"z" * 16): 0}) == vector
    assert hash(VersionVector({**vector, Origin(b"z" * 16): 0})) == hash(vector)


@given(vectors)
def test_a_packed_vector_unpacks_to_itself(vector: VersionVector) -> None:
    assert VersionVector.unpack(vector.pack()) == vector


@given(st.one_of(st.binary(max_size=60), vectors.map(lambda vector: vector.pack()[::-1])))
def test_bytes_are_a_vector_only_in_its_one_form(packed: bytes) -> None:
    try:
        vector = VersionVector.unpack(packed)
    except ValueError:
        return
    assert vector.pack() == packed


@pytest.mark.parametrize(
    "packed",
    [
        b"x",
        b"a" * 16 + bytes(8),
        (b"b" * 16 + b"\0" * 7 + b"\1") + (b"a" * 16 + b"\0" * 7 + b"\1"),
        (b"a" * 16 + b"\0" * 7 + b"\1") * 2,
        b"a" * 16 + b"\1",
    ],
    ids=["torn", "zero", "out of order", "twice", "short sequence"],
)
def test_bytes_of_another_form_are_no_vector(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no version vector"):
        VersionVector.unpack(packed)


class History:
    """Replicas that write and merge, and the obvious twin of what each operation knows: all its dots."""

    def __init__(self) -> None:
        self.vectors = [NOTHING_SEEN] * 3
        self.known: dict[Dot, set[Dot]] = {}
        self.contexts: dict[Dot, VersionVector] = {}

    def write(self, replica: int, origin: Origin) -> None:
        vector = self.vectors[replica]
        dot = Dot(origin, vector[origin] + 1)
        if dot in self.known:
            return  # An origin writes at one replica, unless it was set back.
        self.known[dot] = covered(vector)
        self.contexts[dot] = VersionVector(vector.context_of(origin))
        self.vectors[replica] = vector.advance(dot, self.contexts[dot])
        issued = vector.issue(dot)
        assert (issued, issued.frontier) == (self.vectors[replica], self.vectors[replica].frontier)

    def merge(self, source: int, target: int) -> None:
        lacking = covered(self.vectors[source]) - covered(self.vectors[target])
        for dot in sorted(lacking, key=lambda dot: (len(self.known[dot]), dot)):
            self.vectors[target] = self.vectors[target].advance(dot, self.contexts[dot])

    def maximal(self, replica: int) -> set[Dot]:
        dots = covered(self.vectors[replica])
        return dots - {known for dot in dots for known in self.known[dot]}


writes = st.tuples(st.integers(0, 2), origins)
merges = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(st.lists(st.one_of(writes, merges), max_size=40), st.sampled_from([1, 32]))
def test_a_frontier_is_what_no_other_operation_knows_of(steps: list[tuple[int, Origin | int]], over_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.crdt.dot.OVER_MAX", over_max)
        history = History()
        for replica, other in steps:
            if isinstance(other, int):
                history.merge(replica, other)
            else:
                history.write(replica, other)
        for replica, vector in enumerate(history.vectors):
            assert {Dot(*entry) for entry in vector.frontier.items()} == history.maximal(replica)
            assert vector.frontier.frontier == vector.frontier


@given(vectors, st.lists(st.one_of(origins, vectors), max_size=20), st.data())
def test_vectors_that_share_entries_are_as_those_that_do_not(
    first: VersionVector, steps: list[Origin | VersionVector], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.crdt.dot.OVER_MAX", 2)
        made = [first]
        for step in steps:
            before = data.draw(st.sampled_from(made))
            shared = before.join(step) if isinstance(step, VersionVector) else before.advance(Dot(step, before[step] + 1))
            made.append(shared)
        one, other = data.draw(st.sampled_from(made)), data.draw(st.sampled_from(made))
    plain, twin = VersionVector(dict(one)), VersionVector(dict(other))
    assert (one, len(one), hash(one), one.pack()) == (plain, len(plain), hash(plain), plain.pack())
    assert (one == other) == (plain == twin)
    assert one.dominates(other) == plain.dominates(twin)
    assert one.join(other) == plain.join(twin)
    assert one.since(other) == plain.since(twin)
    assert one.missing(other) == plain.missing(twin)


@pytest.mark.answers("origins-of-past-openings-make-operations")
def test_an_operation_copies_none_of_the_entries_of_past_origins() -> None:
    vector = VersionVector({Origin(n.to_bytes(16, "big")): 5 for n in range(10_000)})
    origin = Origin(b"o" * 16)
    for sequence in range(1, 100):
        before, vector = vector, vector.advance(Dot(origin, sequence))
        assert vector._base is before._base
        assert vector.since(before) == VersionVector({origin: sequence})
