from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import permutations
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.kinds.thread.state import channel, dag
from shoal.kinds.thread.state.dag import Record, Save
from tests.support.examples import examples
from tests.support.rows import DictRows

ORIGINS = [Origin(bytes([n]) * 16) for n in range(3)]


class Operation:
    """A save as it travels: its stamp, the change, its record and chunks, and which operations it depends on."""

    def __init__(self, stamp: Stamp, record: Record, chunks: dict[bytes, bytes], needs: set[int]) -> None:
        packed = dag.encode_record(record)
        self.stamp, self.record, self.chunks, self.needs = stamp, record, chunks, needs
        self.packed = packed
        self.save = Save(dag.identify(record), sha256(packed).digest())

    def apply(self, rows: DictRows) -> None:
        dag.apply(rows, self.stamp, self.save, record=self.packed, chunks=self.chunks)


def operation(
    number: int,
    *,
    value: bytes,
    parents: list[bytes] | None = None,
    branch: str = "main",
    nonce: bytes = b"",
    origin: int = 0,
    hlc: int | None = None,
    needs: set[int] | None = None,
) -> Operation:
    drafted = channel.draft(msgspec.msgpack.encode(value), None, b"")
    record = Record(parents or [], branch, "", 0, b"\x80", nonce, {"value": drafted.recipe})
    stamp = Stamp(Dot(ORIGINS[origin], number + 1), number if hlc is None else hlc, 0, VersionVector())
    return Operation(stamp, record, dict(drafted.rows), needs or set())


def test_an_id_depends_on_the_content_and_not_on_its_recipe() -> None:
    made = operation(1, value=b"x" * 100).record
    recipe = made.channels["value"]
    assert recipe.hash
    other = msgspec.structs.replace(recipe, tail=b"", base=bytes(32), keep=True, depth=1)
    assert dag.identify(msgspec.structs.replace(made, channels={"value": other})) == dag.identify(made)


@pytest.mark.parametrize("files", [{}, {"value": bytes(32)}])
def test_a_decoded_record_is_encoded_as_it_was(files: dict[str, bytes]) -> None:
    packed = dag.encode_record(dag.with_files(operation(1, value=b"x").record, files))
    assert dag.encode_record(dag.decode_record(packed)) == packed


def test_two_moves_of_two_requests_have_two_tokens() -> None:
    assert dag.token_of("main", bytes(32), b"one") != dag.token_of("main", bytes(32), b"other")


def test_tokens_named_by_either_save_are_superseded() -> None:
    rows, base, saved = DictRows(), operation(0, value=b"base", branch="what-if"), operation(1, value=b"saved")
    base.apply(rows)
    move = dag.Move(dag.token_of("main", base.save.id, b""), "main", base.save.id)
    dag.apply_move(rows, Stamp(Dot(ORIGINS[1], 1), 2, 0, VersionVector()), move)
    saved.apply(rows)
    assert {head.token for head in dag.heads(rows, "main")} == {move.token, saved.save.id}
    again = msgspec.structs.replace(saved.save, over=[move.token])
    dag.apply(rows, Stamp(Dot(ORIGINS[2], 1), 3, 0, VersionVector()), again, record=saved.packed, chunks={})
    assert [head.token for head in dag.heads(rows, "main")] == [saved.save.id]


# Each element: which earlier saves it builds on (by number), the branch, and whether it repeats an earlier save elsewhere.
histories = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from(["main", "what-if"]), st.sampled_from(["save", "save", "save", "repeat"])),
    min_size=1,
    max_size=12,
)


def issued(history: list[tuple[int, str, str]]) -> list[Operation]:
    operations: list[Operation] = []
    for number, (back, branch, what) in enumerate(history):
        older = operations[back % len(operations)] if operations else None
        if what == "repeat" and older is not None:
            # The same request, issued on another node that had not seen it: equal id, another dot.
            repeated = operation(number, value=b"", origin=1 + number % 2)
            repeated.record, repeated.packed, repeated.save = older.record, older.packed, older.save
            repeated.chunks, repeated.needs = older.chunks, older.needs
            operations.append(repeated)
            continue
        parents = [older.save.id] if older is not None and back % 3 else []
        needs = {operations.index(older)} if parents and older is not None else set()
        operations.append(
            operation(number, value=bytes([number]) * 400, parents=parents, branch=branch, nonce=bytes([number]), needs=needs)
        )
    return operations


def delivered(operations: list[Operation], order: list[int]) -> DictRows:
    """Apply in the given order as far as causality allows: what is early waits for what it needs."""
    rows, done, waiting = DictRows(), set[int](), list(order)
    while waiting:
        number = next(n for n in waiting if operations[n].needs <= done)
        waiting.remove(number)
        operations[number].apply(rows)
        done.add(number)
    return rows


@pytest.mark.answers("applying-commutes", "writes-stored-before-or-after-their-checkpoint")
@given(histories, st.data())
@examples(150)
def test_replicas_agree_whatever_the_order(history: list[tuple[int, str, str]], data: st.DataObject) -> None:
    operations = issued(history)
    numbers = list(range(len(operations)))
    first = delivered(operations, numbers)
    assert delivered(operations, data.draw(st.permutations(numbers))).canonical() == first.canonical()


@given(histories, st.data())
@examples(60)
def test_a_save_applied_again_changes_nothing(history: list[tuple[int, str, str]], data: st.DataObject) -> None:
    operations = issued(history)
    rows = delivered(operations, list(range(len(operations))))
    before = rows.canonical()
    operations[data.draw(st.integers(0, len(operations) - 1))].apply(rows)
    assert rows.canonical() == before


@given(histories)
@examples(60)
def test_the_heads_are_the_saves_that_no_save_of_the_branch_builds_on(history: list[tuple[int, str, str]]) -> None:
    operations = issued(history)
    rows = delivered(operations, list(range(len(operations))))
    for branch in ("main", "what-if"):
        on_branch = [op for op in operations if op.record.branch == branch]
        built_on = {parent for op in on_branch for parent in op.record.parents}
        assert {head.id for head in dag.heads(rows, branch)} == {op.save.id for op in on_branch} - built_on


@pytest.mark.answers("two-writers-extend-one-thread")
def test_two_writers_of_one_head_make_a_fork_and_both_stay() -> None:
    root = operation(0, value=b"root")
    left = operation(1, value=b"left", parents=[root.save.id], nonce=b"l")
    right = operation(2, value=b"right", parents=[root.save.id], nonce=b"r", origin=1)
    for order in permutations([left, right]):
        rows = DictRows()
        for op in (root, *order):
            op.apply(rows)
        assert [head.id for head in dag.heads(rows, "main")] == [right.save.id, left.save.id]


def test_a_thread_without_prunes_is_asked_for_one_mark() -> None:
    """Each row that is asked for costs a save a look into storage, on each node."""

    class Asked(DictRows):
        def __init__(self) -> None:
            super().__init__()
            self.marks: list[bytes] = []

        def get(self, key: bytes, /) -> bytes | None:
            if key[:1] in (dag.PRUNED, dag.SWEPT):
                self.marks.append(key)
            return super().get(key)

    rows = Asked()
    operation(0, value=b"a").apply(rows)
    assert rows.marks == [dag.PRUNED]


def test_a_repeat_of_a_superseded_save_does_not_become_a_head_again() -> None:
    root = operation(0, value=b"root")
    child = operation(1, value=b"child", parents=[root.save.id])
    repeat = operation(2, value=b"root", origin=1)
    rows = DictRows()
    for op in (root, child, repeat):
        op.apply(rows)
    assert [head.id for head in dag.heads(rows, "main")] == [child.save.id]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "s"},
        {"schema_version": 1},
        {"author": "a"},
        {"label": "l"},
        {"metadata": b"\x81\xa1a\x01"},
        {"nonce": b"other"},
        {"branch": "b"},
        {"parents": [b"p" * 32]},
    ],
)
def test_the_id_covers_what_a_checkpoint_is(change: dict[str, object]) -> None:
    record = operation(0, value=b"x").record
    assert dag.identify(msgspec.structs.replace(record, **change)) != dag.identify(record)


@pytest.mark.parametrize("change", [{"setting": b"s"}, {"seen": b"s"}])
def test_a_repeated_save_may_name_another_setting(change: dict[str, object]) -> None:
    record = operation(0, value=b"x").record
    assert dag.identify(msgspec.structs.replace(record, **change)) == dag.identify(record)


def test_the_id_covers_the_values_and_not_their_recipes() -> None:
    grown = [Random(n).randbytes(3000) for n in range(12)]
    base = channel.draft(msgspec.msgpack.encode(grown[:10]), None, b"").shape
    packed = msgspec.msgpack.encode(grown)
    recipes = [channel.draft(packed, shape, b"h" * 32).recipe for shape in (base, None)]
    assert recipes[0] != recipes[1]
    ids = {dag.identify(Record([], "main", "", 0, b"\x80", b"", {"v": recipe})) for recipe in recipes}
    assert len(ids) == 1


def test_ancestry_follows_first_parents_back() -> None:
    rows = DictRows()
    operations: list[Operation] = []
    parents: list[bytes] = []
    for number in range(4):
        operations.append(operation(number, value=bytes([number]), parents=parents))
        operations[-1].apply(rows)
        parents = [operations[-1].save.id]
    walked = [found.id for found in dag.ancestry(rows, operations[-1].save.id)]
    assert walked == [op.save.id for op in reversed(operations)]


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
def test_a_planted_bug_in_the_heads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a save replaces all heads. The order of concurrent saves then shows."""

    def replace_all(rows: DictRows, branch: str, head: dag.Head, *, over: Iterable[bytes], first: bool) -> list[dag.Head]:
        return dag._put_heads(rows, branch, [head])

    monkeypatch.setattr(dag, "_move_heads", replace_all)
    with pytest.raises(AssertionError):
        test_replicas_agree_whatever_the_order()
