"""The roots of a partition tell of each operation, and of nothing that may differ without a fault."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.cluster.operation import NO_TIP, Tip
from shoal.crdt.dot import Origin
from shoal.node.snapshots.checking import TABLES, Left, Rooting, mark_of, vector_root
from shoal.node.snapshots.switching import Row
from shoal.storage import keys
from simulation.world.fleet import Fleet, Member
from tests.node.snapshots.conftest import NUMBER, SPACE, Filled

OTHERS = Origin(b"o" * 16)


def rows_of(member: Member) -> list[Row]:
    return [row for table in TABLES for row in member.storage.scan(*keys.rows_of(table, NUMBER))]


def roots(rows: Iterable[Row], live: Iterable[Origin] = (), left: Left = Left()) -> list[bytes]:
    rooting = Rooting(live, left)
    rooting.take(rows)
    return rooting.roots()


async def test_equal_operations_have_equal_roots() -> None:
    async with Fleet("ab") as fleet:
        space = fleet["a"].store().space(SPACE)
        await space.thread("t").save({"notes": ["a"]})
        await space.counter("n").add(1)
        await fleet["b"].store().space(SPACE).set("urls").add("x")
        await fleet.converged()
        live = [*fleet["a"].node._database.partitions.load(NUMBER).tips]
        assert len({tuple(roots(rows_of(member), live)) for member in fleet.members.values()}) == 1


async def test_each_row_changes_a_root(filled: Filled) -> None:
    rows = [row for row in filled.rows().items() if row[0][:1] in (keys.OBJECT, keys.LISTED)]
    sound = roots(rows)
    for nth in range(len(rows)):
        assert roots(rows[:nth] + rows[nth + 1 :]) != sound


async def test_an_unsure_object_is_left_out(filled: Filled) -> None:
    rows = filled.rows()
    one = next(keys.object_of(key) for key in rows if key[:1] == keys.OBJECT)
    without = {key: value for key, value in rows.items() if keys.object_of(key) != one}
    unsure = Left(unsure=frozenset({mark_of(one)}))
    objects = TABLES.index(keys.OBJECT)
    assert roots(rows.items(), left=unsure)[objects] == roots(without.items())[objects]


async def test_rows_of_other_tables_change_no_root(filled: Filled) -> None:
    rows = filled.rows()
    others = {key: b"" for key in rows if key[:1] in (keys.LOG, keys.META)}
    assert others
    assert roots((rows | others).items()) == roots(rows.items())


def test_a_vectors_root_tells_the_hash_chains() -> None:
    assert vector_root({OTHERS: Tip(1, 1, b"c" * 32)}) != vector_root({OTHERS: Tip(1, 1, b"d" * 32)})
    assert vector_root({OTHERS: NO_TIP}) != vector_root({})
