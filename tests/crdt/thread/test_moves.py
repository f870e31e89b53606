"""Moves of branches: every replica agrees where a branch is, whatever came in which order, and however often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.thread.state import dag
from shoal.kinds.thread.state.dag import Drop, Head, Move, Record, Save
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

BRANCHES = ["main", "what-if"]


class Made(NamedTuple):
    """A change, and the record that travels beside a save."""

    change: Save | Move | Drop
    record: bytes = b""

    @property
    def token(self) -> bytes:
        """Of a change that makes a head."""
        assert not isinstance(self.change, Drop)
        return self.change.id if isinstance(self.change, Save) else self.change.token


def apply(rows: Rows, stamp: Stamp, made: Made) -> None:
    if isinstance(made.change, Save):
        dag.apply(rows, stamp, made.change, record=made.record, chunks={})
    elif isinstance(made.change, Drop):
        dag.apply_drop(rows, stamp, made.change)
    else:
        dag.apply_move(rows, stamp, made.change)


def saved(rows: Rows, branch: str, parents: list[bytes], nonce: bytes) -> Made:
    """A save as a node makes it: over the moves that put the branch on its parents."""
    record = Record(parents, branch, "", 0, b"\x80", nonce, {})
    packed = dag.encode_record(record)
    over = [head.token for head in dag.heads(rows, branch) if head.token != head.id and head.id in parents]
    return Made(Save(dag.identify(record), sha256(packed).digest(), over), packed)


def moved(rows: Rows, branch: str, to: bytes, nonce: bytes) -> Made:
    over = [head.token for head in dag.heads(rows, branch)]
    return Made(Move(dag.token_of(branch, to, nonce), branch, to, over))


def deleted(rows: Rows, branch: str) -> Made:
    return Made(Drop(branch, [head.token for head in dag.heads(rows, branch)]))


def stored(rows: Rows) -> list[bytes]:
    return [key[1:] for key, _ in rows.scan(dag.CHECKPOINT)]


def deciding(choose: Choose) -> Decide:
    count = iter(range(1 << 20))

    def decide(replica: Replica, everyone: list[Replica]) -> list[Made]:
        rows = replica.rows
        there = stored(rows)
        again = [
            made for other in everyone for operation in other.applied for made in operation.changes if can_repeat(made, rows)
        ]
        branch, nonce = BRANCHES[choose(2)], next(count).to_bytes(4, "big")
        if again and choose(3) == 0:
            return [repeated(again[choose(len(again))], rows)]
        if there and choose(4) == 0:
            return [deleted(rows, branch)]
        if there and choose(2):
            return [moved(rows, branch, there[choose(len(there))], nonce)]
        heads = [head.id for head in dag.heads(rows, branch)]
        parents = heads[: 1 + choose(2)] if heads and choose(4) else there[: choose(2)]
        return [saved(rows, branch, parents, nonce)]

    return decide


def can_repeat(made: Made, rows: Rows) -> bool:
    """Whether a replica that has not seen this request, or that has, can be asked the same."""
    change = made.change
    if isinstance(change, Drop):
        return True
    if isinstance(change, Move):
        return rows.get(dag.CHECKPOINT + change.to) is not None
    parents = dag.decode_record(made.record).parents
    return all(rows.get(dag.CHECKPOINT + parent) is not None for parent in parents)


def repeated(made: Made, rows: Rows) -> Made:
    """The same request where other heads are known: an equal token over other tokens."""
    change = made.change
    if isinstance(change, Drop):
        return deleted(rows, change.branch)
    if isinstance(change, Move):
        others = [head.token for head in dag.heads(rows, change.branch) if head.token != change.token]
        return Made(Move(change.token, change.branch, change.to, others))
    record = dag.decode_record(made.record)
    return saved(rows, record.branch, record.parents, record.nonce)


def twin_heads(replica: Replica, branch: str) -> set[bytes]:
    """The tokens that nothing supersedes, from all operations at once."""
    tokens: set[bytes] = set()
    gone: set[bytes] = set()
    for operation in replica.applied:
        for made in operation.changes:
            if isinstance(made.change, Drop):
                gone.update(made.change.over if made.change.branch == branch else ())
                continue
            if isinstance(made.change, Move):
                on, parents = made.change.branch, []
            else:
                record = dag.decode_record(made.record)
                on, parents = record.branch, record.parents
            if on == branch:
                tokens.add(made.token)
                gone.update(made.change.over, parents)
    return tokens - gone


def check(choose: Choose) -> None:
    for replica in check_converges(choose, apply, deciding(choose)):
        for branch in BRANCHES:
            tokens = twin_heads(replica, branch)
            assert {head.token for head in dag.heads(replica.rows, branch)} == tokens
            assert (branch in dag.branches(replica.rows)) == bool(tokens)


@examples(150)
@given(st.data())
def test_replicas_agree_where_branches_are(data: st.DataObject) -> None:
    check(chooser(data))


def stamp(number: int, sequence: int = 1) -> Stamp:
    return Stamp(Dot(origin(number), sequence), sequence, 1, VersionVector())


def test_a_concurrent_save_and_move_are_both_heads() -> None:
    rows = DictRows()
    root = saved(rows, "main", [], b"root")
    apply(rows, stamp(1), root)
    head = saved(rows, "main", [root.token], b"head")
    apply(rows, stamp(1, 2), head)
    back = moved(rows, "main", root.token, b"back")
    on = saved(rows, "main", [head.token], b"on")
    apply(rows, stamp(1, 3), back)
    apply(rows, stamp(2, 3), on)
    assert {found.id for found in dag.heads(rows, "main")} == {root.token, on.token}


def test_a_save_takes_the_place_of_the_move_to_its_parent() -> None:
    rows = DictRows()
    root = saved(rows, "main", [], b"root")
    apply(rows, stamp(1), root)
    apply(rows, stamp(1, 2), moved(rows, "side", root.token, b"side"))
    child = saved(rows, "side", [root.token], b"child")
    apply(rows, stamp(1, 3), child)
    assert [head.id for head in dag.heads(rows, "side")] == [child.token]
    assert [head.id for head in dag.heads(rows, "main")] == [root.token]


def replacing_all(rows: Rows, branch: str, head: Head, *, over: Iterable[bytes], first: bool) -> list[Head]:
    return dag._put_heads(rows, branch, [head])


def forgetting_repeats(_rows: Rows, _branch: str, _over: Iterable[bytes]) -> list[Head]:
    return []


@pytest.mark.parametrize(("name", "bug"), [("_move_heads", replacing_all), ("_supersede", forgetting_repeats)])
def test_a_planted_bug_is_found(name: str, bug: Callable[..., list[Head]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dag, name, bug)
    assert fails_for_some_seed(check)
