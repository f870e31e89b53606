"""Every way to tamper with a node's log, and what a statement of before says of it: nothing is overlooked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shoal.audit import statements, verification
from shoal.audit.statements import Kind
from shoal.audit.verification import Archive, Report, verify
from shoal.cluster import operation
from shoal.cluster.operation import LogEntry, Tip
from shoal.config import Config
from shoal.crdt.dot import Dot
from shoal.crdt.rows import successor
from shoal.errors import InvalidInput
from shoal.node.verification.verify import verify as verify_directory
from shoal.protocol.requests import ReadLog, SignHeads, Statement
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener, open_bench  # noqa: F401

OPERATIONS = 12


@pytest.fixture
async def bench(open_bench: Opener) -> Bench:  # noqa: F811
    return open_bench()


async def wrote(bench: Bench, count: int = OPERATIONS) -> None:
    for number in range(count):
        await bench.space.thread("agent").journal.append(number)


async def signed(bench: Bench) -> Statement:
    return await bench.node.session().call(SignHeads())


async def checked(bench: Bench, *found: Statement, archives: list[Archive] | None = None) -> Report:
    return await verify(found, bench.node.session().call, archives=archives or [])


def log(storage: MemoryStorage) -> list[tuple[bytes, bytes]]:
    return list(storage.scan(keys.LOG, successor(keys.LOG)))


def kinds(report: Report) -> set[Kind]:
    return {finding.kind for finding in report.findings}


def rechained(storage: MemoryStorage, rows: list[tuple[bytes, bytes]]) -> None:
    """Write these operations with new chain hashes, and the tip too: as somebody who knows the format would."""
    previous, last = operation.CHAIN_START, rows[-1][0]
    for key, row in rows:
        partition, dot = keys.split_log(key)
        packed = LogEntry.unpack(row).packed
        previous = operation.chain(previous, partition, dot, packed)
        storage.write({key: LogEntry(previous, packed).pack()})
    partition, dot = keys.split_log(last)
    place = keys.vector(partition, dot.origin)
    tip = Tip.unpack(storage.get(place) or b"")
    storage.write({place: msgspec.structs.replace(tip, sequence=dot.sequence, chain=previous).pack()})


def with_body(row: bytes, **changes: object) -> bytes:
    entry = LogEntry.unpack(row)
    body = msgspec.structs.replace(operation.decode(entry.packed), **changes)
    return LogEntry(entry.chain, operation.encode(body)).pack()


def alter(storage: MemoryStorage) -> None:
    key, row = log(storage)[4]
    storage.write({key: with_body(row, payload=b"\x90")})


def alter_and_recompute(storage: MemoryStorage) -> None:
    rows = log(storage)
    rows[4] = (rows[4][0], with_body(rows[4][1], payload=b"\x90"))
    rechained(storage, rows)


def drop(storage: MemoryStorage) -> None:
    storage.write({log(storage)[4][0]: None})


def drop_and_recompute(storage: MemoryStorage) -> None:
    """Without a gap: each later operation takes the number before its own."""
    rows = log(storage)
    moved = [(rows[at][0], rows[at + 1][1]) for at in range(4, len(rows) - 1)]
    storage.write({rows[-1][0]: None})
    rechained(storage, rows[:4] + moved)


def insert(storage: MemoryStorage) -> None:
    rows = log(storage)
    partition, last = keys.split_log(rows[-1][0])
    key = keys.log(partition, Dot(last.origin, last.sequence + 1))
    moved = [(rows[at][0], rows[at - 1][1]) for at in range(5, len(rows))]
    rechained(storage, [*rows[:5], *moved, (key, rows[-1][1])])


def reorder(storage: MemoryStorage) -> None:
    rows = log(storage)
    (first, a), (second, b) = rows[3], rows[4]
    storage.write({first: b, second: a})


def reorder_and_recompute(storage: MemoryStorage) -> None:
    rows = log(storage)
    rows[3], rows[4] = (rows[3][0], rows[4][1]), (rows[4][0], rows[3][1])
    rechained(storage, rows)


def truncate(storage: MemoryStorage) -> None:
    rows = log(storage)
    for key, _ in rows[8:]:
        storage.write({key: None})
    rechained(storage, rows[:8])


def lose(storage: MemoryStorage) -> None:
    """All of it."""
    for key, _ in log(storage):
        storage.write({key: None})
    for key, _ in list(storage.scan(keys.VECTOR, successor(keys.VECTOR))):
        storage.write({key: None})


def back_date(storage: MemoryStorage) -> None:
    rows = log(storage)
    rows[4] = (rows[4][0], with_body(rows[4][1], hlc=1, wall_ms=1))
    rechained(storage, rows)


TAMPERING: dict[Callable[[MemoryStorage], None], set[Kind]] = {
    alter: {Kind.ALTERED},
    alter_and_recompute: {Kind.ALTERED},
    drop: {Kind.REMOVED},
    drop_and_recompute: {Kind.ALTERED},
    insert: {Kind.ALTERED, Kind.BACK_DATED},
    reorder: {Kind.ALTERED},
    reorder_and_recompute: {Kind.ALTERED, Kind.BACK_DATED},
    truncate: {Kind.REMOVED},
    lose: {Kind.REMOVED},
    back_date: {Kind.ALTERED, Kind.BACK_DATED},
}


@pytest.mark.answers("statements-show-tampering")
@pytest.mark.parametrize("tamper", TAMPERING, ids=lambda tamper: tamper.__name__)
async def test_tampering_is_found(bench: Bench, tamper: Callable[[MemoryStorage], None]) -> None:
    await wrote(bench)
    statement = await signed(bench)
    await wrote(bench, 3)  # After the statement: they prove nothing for whoever tampers.
    assert (await checked(bench, statement)).sound
    tamper(bench.storage)
    assert kinds(await checked(bench, statement)) == TAMPERING[tamper]


@pytest.mark.answers("statements-show-tampering")
@pytest.mark.parametrize("tamper", TAMPERING, ids=lambda tamper: tamper.__name__)
async def test_tampering_is_found_after_a_restart(bench: Bench, open_bench: Opener, tamper: Callable[..., None]) -> None:  # noqa: F811
    await wrote(bench)
    statement = await signed(bench)
    await wrote(bench, 3)
    await bench.node.stop()
    left = MemoryStorage(bench.storage._shown.rows, identity=bench.storage.identity)
    tamper(left)
    again = open_bench(left, seed=2)
    assert kinds(await checked(again, statement)) == TAMPERING[tamper]


async def test_untouched_content_is_proved(bench: Bench) -> None:
    await wrote(bench)
    first = await signed(bench)
    await wrote(bench)
    report = await checked(bench, first, await signed(bench))
    assert (report.sound, report.statements, report.logs, report.gone) == (True, 2, 1, 0)
    assert (report.proved, report.operations) == (2, 2 * OPERATIONS)


async def test_a_statement_that_was_altered_is_found(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    for altered in (
        msgspec.structs.replace(statement, time_ms=1),
        msgspec.structs.replace(statement, heads=[]),
        msgspec.structs.replace(statement, heads=[msgspec.structs.replace(statement.heads[0], sequence=1)]),
        msgspec.structs.replace(statement, signature=bytes(64)),
        msgspec.structs.replace(statement, key=b"short"),
    ):
        assert kinds(await checked(bench, altered)) == {Kind.FORGED}


@pytest.mark.answers("statements-show-tampering")
async def test_a_history_that_is_shown_differently_by_two_nodes_is_a_fork(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    seed = bytes(32)
    head = msgspec.structs.replace(statement.heads[0], chain=bytes(32))
    other = statements.signed(msgspec.structs.replace(statement, node=b"o" * 16, heads=[head]), seed)
    assert Kind.FORKED in kinds(await checked(bench, statement, other))


async def test_two_statements_with_one_number_or_another_key_are_found(bench: Bench) -> None:
    await wrote(bench)
    first = statements.signed(msgspec.structs.replace(await signed(bench), number=1), bytes(32))
    twice = statements.signed(msgspec.structs.replace(first, time_ms=first.time_ms + 1), bytes(32))
    assert kinds(await checked(bench, first, twice)) == {Kind.FORKED}
    second = msgspec.structs.replace(first, number=2, previous=statements.digest(first))
    assert (await checked(bench, first, statements.signed(second, bytes(32)))).sound
    assert kinds(await checked(bench, first, statements.signed(second, b"k" * 32))) == {Kind.KEY_CHANGED}
    unlinked = msgspec.structs.replace(second, previous=bytes(32))
    assert kinds(await checked(bench, first, statements.signed(unlinked, bytes(32)))) == {Kind.UNLINKED}


async def test_an_operation_that_a_node_writes_after_its_statement_cannot_be_older(bench: Bench) -> None:
    await wrote(bench)
    early = await signed(bench)
    late = msgspec.structs.replace(early, time_ms=early.time_ms + 3_600_000)
    bound = statements.signed(late, bytes(32))
    await wrote(bench, 1)
    assert Kind.BACK_DATED in kinds(await checked(bench, bound, await signed(bench)))
    assert (await checked(bench, early, await signed(bench))).sound


# ── rows ──────────────────────────────────────────────────────────────────────

OLD = (
    '{"node":"6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e","number":1,"time_ms":2,"previous":"","own":["6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f"],'
    '"heads":[[1,"6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f",1,2,"6363636363636363636363636363636363636363636363636363636363636363"]],'
    '"key":"3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29","signature":"d09105721af36305c0bdb543e6aacea712364081'
    '82cc537c1ae3141e966ce8c65d8be930adbbf7dd1a5fab877a57f1024374db6b049488692932490fa9ab8d05"}'
)
"""A statement as versions without roots wrote it."""


def altered_row(storage: MemoryStorage) -> tuple[bytes, bytes]:
    key, value = list(storage.scan(keys.OBJECT, successor(keys.OBJECT)))[-1]
    return key, value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.answers("statements-show-tampering")
async def test_a_row_that_was_altered_is_found(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    report = await checked(bench, statement)
    assert (report.sound, report.rows, report.uncompared) == (True, 1, [])
    bench.storage.write(dict([altered_row(bench.storage)]))
    report = await checked(bench, statement)
    assert (kinds(report), report.rows) == ({Kind.ROWS_DIFFER}, 0)
    assert "the rows of its objects" in report.findings[0].text


async def test_an_object_taken_from_the_list_is_found(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    [(key, _)] = bench.storage.scan(keys.LISTED, successor(keys.LISTED))
    bench.storage.write({key: None})
    [finding] = (await checked(bench, statement)).findings
    assert (finding.kind, "the list of its objects" in finding.text) == (Kind.ROWS_DIFFER, True)


@pytest.mark.answers("statements-show-tampering")
async def test_roots_are_signed(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    assert statement.roots is not None
    [root] = statement.roots
    for roots in ([], None, [msgspec.structs.replace(root, objects=bytes(32))], [msgspec.structs.replace(root, left=[b"x"])]):
        altered = msgspec.structs.replace(statement, roots=roots)
        assert kinds(await checked(bench, altered)) == {Kind.FORGED}


async def test_rows_that_moved_on_are_not_compared(bench: Bench) -> None:
    await wrote(bench)
    old = await signed(bench)
    await wrote(bench, 1)
    report = await checked(bench, old, await signed(bench))
    assert (report.sound, report.rows) == (True, 1)
    [told] = report.uncompared
    assert told.endswith("the rows of 1 partition have been written to since")


async def test_a_log_is_folded_to_an_older_statement(bench: Bench) -> None:
    await wrote(bench)
    old = await signed(bench)
    await wrote(bench, 1)
    report = verify_directory(bench.storage, config=Config(), statements=[old])
    assert (report.sound, report.rows, report.uncompared) == (True, 1, []), report.problems
    assert old.roots is not None
    lie = statements.signed(
        msgspec.structs.replace(old, roots=[msgspec.structs.replace(old.roots[0], objects=bytes(32))]), bytes(32)
    )
    [problem] = verify_directory(bench.storage, config=Config(), statements=[lie]).problems
    assert "of what the operations make are not those of the statement" in problem


async def test_statements_on_other_rows_contradict_each_other(bench: Bench) -> None:
    await wrote(bench)
    statement = await signed(bench)
    assert statement.roots is not None
    other = [msgspec.structs.replace(statement.roots[0], objects=bytes(32))]
    lie = statements.signed(msgspec.structs.replace(statement, node=b"o" * 16, roots=other), bytes(32))
    assert kinds(await verify([statement, lie], None)) == {Kind.ROWS_DIFFER}


async def test_rows_that_wait_to_be_swept_are_left_out(bench: Bench) -> None:
    await wrote(bench)
    await bench.space.thread("agent").journal.trim(keep=2)
    statement = await signed(bench)
    assert statement.roots is not None
    assert len(statement.roots[0].left) == 1
    report = await checked(bench, statement)
    assert (report.sound, report.rows) == (True, 1)


async def test_a_statement_without_roots_still_holds(bench: Bench) -> None:
    old = statements.from_text(OLD)
    assert (old.roots, statements.is_signed(old)) == (None, True)
    assert statements.digest(old).hex() == "89a27860e8af5295c976298c9f68f41c08834fa2c19b4fa5e7c2d9348f34fa2f"
    [told] = (await checked(bench, old)).uncompared
    assert told.endswith("is of an older version: it says nothing of rows")


# ── archives ──────────────────────────────────────────────────────────────────


async def exported(bench: Bench, file: Path, since: Statement | None = None) -> Archive:
    lines = [line async for line in verification.lines(bench.node.session().call, since=since)]
    file.write_text("\n".join(lines) + "\n")
    return Archive(file)


async def test_an_archive_proves_without_a_node_what_it_holds(bench: Bench, tmp_path: Path) -> None:
    await wrote(bench)
    first = await signed(bench)
    await wrote(bench)
    whole = await exported(bench, tmp_path / "whole.jsonl")
    report = await verify([first], None, archives=[whole])
    assert (report.sound, report.proved, report.gone, report.operations) == (True, 2, 0, 2 * OPERATIONS)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: [*lines[:4], *lines[5:]], {Kind.REMOVED}),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], {Kind.REMOVED}),
        (lambda lines: lines[:-2], {Kind.REMOVED}),
        (lambda lines: [*lines[:4], lines[4].replace('"packed": "', '"packed": "AAAA'), *lines[5:]], {Kind.ALTERED}),
    ],
    ids=["dropped", "reordered", "cut", "altered"],
)
async def test_an_archive_that_was_altered_is_found(
    bench: Bench, tmp_path: Path, change: Callable[[list[str]], list[str]], found: set[Kind]
) -> None:
    await wrote(bench)
    whole = await exported(bench, tmp_path / "whole.jsonl")
    file = tmp_path / "altered.jsonl"
    file.write_text("\n".join(change((tmp_path / "whole.jsonl").read_text().splitlines())) + "\n")
    assert (await verify([], None, archives=[whole])).sound
    assert kinds(await verify([whole.statement], None, archives=[Archive(file)])) == found


@pytest.mark.answers("statements-show-tampering")
async def test_operations_that_left_the_log_are_counted(bench: Bench, tmp_path: Path) -> None:
    await wrote(bench)
    old = await signed(bench)
    await wrote(bench, 1)
    whole = await exported(bench, tmp_path / "whole.jsonl")
    await wrote(bench, OPERATIONS - 1)
    _leave_log(bench, 2 * OPERATIONS - 5)
    report = await checked(bench, old)
    assert (report.sound, report.proved, report.gone) == (True, 0, 1)
    report = await checked(bench, old, archives=[whole])
    assert (report.sound, report.proved, report.gone) == (True, 2, 0), "the archive's own statement and the old one"


@pytest.mark.answers("statements-show-tampering")
async def test_an_archive_that_does_not_lead_up_to_the_log_is_found(bench: Bench, tmp_path: Path) -> None:
    """Both are genuine by themselves: the log is another history's continuation."""
    await wrote(bench)
    old = await signed(bench)
    await wrote(bench)
    whole = await exported(bench, tmp_path / "whole.jsonl")
    rows = log(bench.storage)
    rows[-1] = (rows[-1][0], with_body(rows[-1][1], payload=b"\x90"))
    rechained(bench.storage, rows)
    _reload(bench)
    _leave_log(bench, 2 * OPERATIONS)
    assert Kind.ALTERED in kinds(await checked(bench, old, archives=[whole]))


async def test_later_archives_continue_earlier_ones(bench: Bench, tmp_path: Path) -> None:
    await wrote(bench)
    first = await exported(bench, tmp_path / "first.jsonl")
    await wrote(bench)
    second = await exported(bench, tmp_path / "second.jsonl", since=first.statement)
    assert (tmp_path / "second.jsonl").read_text().count('{"operation"') == OPERATIONS
    report = await verify([], None, archives=[first, second])
    assert (report.sound, report.proved, report.gone) == (True, 2, 0)


@pytest.mark.parametrize("text", ["", "{}", "[1]\n", "no json", '{"statement":{"node":1}}'])
def test_files_that_are_no_archive_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(InvalidInput, match="Nothing was checked"):
        Archive(tmp_path / "x.jsonl")
    with pytest.raises(InvalidInput, match="cannot be read"):
        Archive(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("change", [{"node": 1}, {"heads": [[1]]}, {"key": "zz"}, {"number": "x"}, {"heads": None}])
async def test_malformed_statements_are_refused(bench: Bench, change: dict[str, object]) -> None:
    await wrote(bench, 1)
    text = statements.to_text(await signed(bench))
    assert statements.is_signed(statements.from_text(text))
    with pytest.raises(InvalidInput, match="no statement"):
        statements.from_text(json.dumps(json.loads(text) | change))


# ── the node ──────────────────────────────────────────────────────────────────


async def test_a_log_is_named_by_a_partition_and_an_origin(bench: Bench) -> None:
    session = bench.node.session()
    for request in (ReadLog(-1, bytes(16)), ReadLog(99_999, bytes(16)), ReadLog(1, b"x"), ReadLog(1, bytes(16), limit=0)):
        with pytest.raises(InvalidInput, match="Nothing was read"):
            await session.call(request)
    page = await session.call(ReadLog(1, bytes(16)))
    assert (page.base, page.tip, page.operations) == (0, 0, [])


async def test_a_statement_covers_only_what_is_durable(bench: Bench) -> None:
    await wrote(bench, 1)
    statement = await signed(bench)
    left = bench.crashed()
    assert (await checked(left, statement)).sound
    await left.node.stop()


async def test_a_key_is_durable_before_it_is_used(bench: Bench, open_bench: Opener) -> None:  # noqa: F811
    await wrote(bench, 1)
    statement = await signed(bench)
    rows = dict(bench.storage.left_by_crash().scan(b"", None))
    left = open_bench(MemoryStorage(rows, identity=bench.storage.identity), seed=2)
    again = await signed(left)
    assert (again.node, again.key) == (statement.node, statement.key)


def _reload(bench: Bench) -> None:
    """The node reads its tips anew."""
    partitions = bench.node.service._database.partitions
    for number in list(partitions.vectors()):
        partitions._loaded.pop(number)
        partitions.load(number)


def _leave_log(bench: Bench, sequence: int) -> None:
    """The operations up to this one leave the log."""
    rows = log(bench.storage)
    partition, dot = keys.split_log(rows[sequence - 1][0])
    body = operation.decode(LogEntry.unpack(rows[sequence - 1][1]).packed)
    base = Tip(sequence, body.hlc, LogEntry.unpack(rows[sequence - 1][1]).chain)
    bench.storage.write({keys.base(partition, dot.origin): base.pack(), **{key: None for key, _ in rows[:sequence]}})
    _reload(bench)
