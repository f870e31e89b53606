"""Statements against a node's logs, and against archives, which are operations of its logs as JSON Lines.

An archive: the operations of a node's logs as JSON Lines, with what proves them.

    {"statement": {…}}                                      the node's statement on all that follows
    {"log": [partition, origin], "base": 3, "chain": "…"}   one log begins: its last operation that is not in the archive
    {"operation": 4, "chain": "…", "time": "…", "key": "…", "packed": "…"}

Laws:
- Bytes are hex digits, but `packed`, an operation as docs/STORAGE.md says, which is base64.
- Only `packed` is proved. Time and key are what it says, for people and their tools.

Laws:
- Nothing that the node says is believed but what its logs prove.
- A claim is proved, contradicted or gone from the logs: the report counts each of them once.
- A claim on rows is compared with what the node computes from its rows now, or it is named as not compared. The node is
  believed in that: `shoal verify`, which reads the rows itself, is the proof.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

from shoal.audit import statements
from shoal.audit import statements as signing
from shoal.audit.statements import (
    Finding,
    Kind,
    LogName,
    StatedHead,
    StatedRoot,
    Walk,
    contradictions,
    disagreements,
    heads_of,
    roots_of,
)
from shoal.cluster import operation
from shoal.cluster.operation import PARTITIONS
from shoal.errors import InvalidInput
from shoal.protocol.requests import LeftOut, LoggedOperation, LogHead, LogPage, ReadLog, SignHeads, Statement, StateRoot
from shoal.records import NamedTuple

_PAGE = 1000

Call = Callable[[Any], Awaitable[Any]]
"""A session's `call`."""


async def lines(call: Call, *, since: Statement | None = None) -> AsyncIterator[str]:
    """The lines of an archive of all that a node holds, or of what it got after a statement."""
    begun = {} if since is None else {(head.partition, head.origin): head for head in since.heads}
    statement: Statement = await call(SignHeads())
    yield f'{{"statement":{statements.to_text(statement)}}}'
    for head in statement.heads:
        before = begun.get((head.partition, head.origin))
        after = 0 if before is None else before.sequence
        if after >= head.sequence:
            continue
        page: LogPage = await call(ReadLog(head.partition, head.origin, after, _PAGE))
        base, chain = (page.base, page.base_chain) if page.base > after else (after, operation.CHAIN_START)
        if before is not None and base == after:
            chain = before.chain
        yield json.dumps({"log": [head.partition, head.origin.hex()], "base": base, "chain": chain.hex()})
        while page.operations and after < head.sequence:
            for entry in page.operations:
                after = entry.sequence
                if after <= head.sequence:
                    yield _line(entry)
            page = await call(ReadLog(head.partition, head.origin, after, _PAGE))


def _line(entry: LoggedOperation) -> str:
    body = operation.decode(entry.packed)
    when = datetime.fromtimestamp(body.wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    packed = base64.b64encode(entry.packed).decode()
    return json.dumps(
        {"operation": entry.sequence, "chain": entry.chain.hex(), "time": when, "key": body.key, "packed": packed}
    )


class Archive:
    """An archive in a file. Its logs are read where they are asked for."""

    def __init__(self, file: Path) -> None:
        """Index the file.

        Raises:
            InvalidInput: it cannot be read, or is no archive.
        """
        self._file = file
        self._begins: dict[LogName, int] = {}  # The place in the file.
        self.statement: Statement
        try:
            with file.open("rb") as opened:
                self._index(opened)
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}. Nothing was checked.") from None

    @property
    def logs(self) -> list[LogName]:
        """The logs of which it holds operations."""
        return list(self._begins)

    def page(self, name: LogName) -> LogPage | None:
        """All of one log that is here; None if nothing is.

        Raises:
            InvalidInput: a line is not what it should be.
        """
        if name not in self._begins:
            return None
        with self._file.open("rb") as opened:
            opened.seek(self._begins[name])
            first = self._parsed(opened.readline())
            found = list(self._operations(opened))
        base, chain = int(first["base"]), self._bytes(first["chain"])
        tip, tip_chain = (found[-1].sequence, found[-1].chain) if found else (base, chain)
        return LogPage(base, chain, tip, tip_chain, operations=found)

    def _index(self, opened: IO[bytes]) -> None:
        first = self._parsed(opened.readline())
        self.statement = statements.from_text(json.dumps(first.get("statement")))
        place = opened.tell()
        while line := opened.readline():
            if line.startswith(b'{"log"'):
                partition, origin = self._parsed(line)["log"]
                self._begins[LogName(partition, self._bytes(origin))] = place
            place = opened.tell()

    def _operations(self, opened: IO[bytes]) -> Iterator[LoggedOperation]:
        while (line := opened.readline()) and not line.startswith(b'{"log"'):
            found = self._parsed(line)
            try:
                packed = base64.b64decode(found["packed"], validate=True)
                yield LoggedOperation(int(found["operation"]), self._bytes(found["chain"]), packed)
            except (LookupError, TypeError, binascii.Error):
                raise self._wrong() from None

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            raise self._wrong() from None
        if not isinstance(found, dict):
            raise self._wrong()
        return found

    def _bytes(self, text: Any) -> bytes:
        try:
            return bytes.fromhex(text)
        except (ValueError, TypeError):
            raise self._wrong() from None

    def _wrong(self) -> InvalidInput:
        return InvalidInput(f"{self._file} is no archive: `shoal audit export` writes one. Nothing was checked.")


SKEW_MS = 60_000
"""By how much a node's clock may be set back between a statement and its next operation."""
_ROOTS_AT_ONCE = 16  # Partitions whose rows a node is asked about in one request;
_LEFT_MAX = 1024  # no root leaves out more objects of one.
# Why rows were not compared.
WRITTEN = "have been written to since"
AWAY = "have objects with chunks in an object store by now"
SWEPT = "have objects that wait to be swept"
UNREAD = "have no root there: they are damaged, being replaced, or too large for one answer, or too much waits to be swept"
_ALONE = "are not in an archive"


class Report(NamedTuple):
    """The counts and findings of a verification."""

    statements: int
    logs: int
    proved: int  # Claims: that one log had one chain hash after one operation.
    gone: int  # Claims on operations that have left the log, and are in no archive.
    operations: int  # Whose bytes were proved.
    findings: Sequence[Finding]
    rows: int = 0  # Claims: that the rows of one partition were these. The node has the same.
    uncompared: Sequence[str] = ()  # The statements whose claims on rows were not compared, and why, for people.

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong. What is gone, or was not compared, is not wrong; it is not proved."""
        return not self.findings


async def verify(
    found: Iterable[Statement],
    call: Call | None,
    *,
    archives: Sequence[Archive] = (),
    skew_ms: int = SKEW_MS,
    progress: Callable[[LogName], object] = lambda _: None,
) -> Report:
    """Check statements against the node that `call` asks, and against archives; without a node, against archives alone."""
    held = list({signing.digest(each): each for each in [*found, *(archive.statement for archive in archives)]}.values())
    findings = [
        Finding(Kind.FORGED, f"the statement of node {each.node.hex()} at {each.time_ms} does not have a valid signature")
        for each in held
        if not signing.is_signed(each)
    ]
    held = [each for each in held if signing.is_signed(each)]
    findings += _links(held)
    claims = heads_of(held)
    findings += contradictions(claims)
    proved = gone = operations = 0
    for name, each in claims.items():
        progress(name)
        for walk in await _walks(name, each, call, archives, skew_ms=skew_ms):
            findings += walk.findings
            proved += walk.proved
            operations += walk.operations
            left = walk.gone
        gone += len(left)
    rows = RowsOf(held)
    await rows.compare(call)
    findings += rows.findings
    return Report(len(held), len(claims), proved, gone, operations, findings, rows.compared, rows.told())


class RowsOf:
    """The claims of statements about rows, and which of them were compared."""

    def __init__(self, held: Sequence[Statement]) -> None:
        self.compared = 0
        self.agreed: dict[int, StatedRoot] = {}  # By partition whose rows are those of a statement: the newest one.
        self._held = held
        self._waiting = roots_of(held)
        self.findings = disagreements(self._waiting)
        self._aside: dict[tuple[bytes, int], dict[str, list[int]]] = {}  # By node and time: partitions by why.

    async def compare(self, call: Call | None) -> None:
        """Compare all that can be compared with the rows of the node that `call` asks."""
        for claims in list(self._waiting.values()):
            for claim in claims:
                sane = len(claim.root.left) <= _LEFT_MAX and 0 <= claim.root.partition < PARTITIONS
                if call is None or not sane:
                    self.set_aside(claim, _ALONE if call is None else UNREAD)
        while call is not None and self._waiting:
            asked = {number: claims[0].root.left for number, claims in islice(self._waiting.items(), _ROOTS_AT_ONCE)}
            answer: Statement = await call(SignHeads([LeftOut(number, left) for number, left in asked.items()]))
            self._heard(asked, answer)

    def _heard(self, asked: dict[int, list[bytes]], answer: Statement) -> None:
        """Take the answer of a node, which makes roots in the order in which it is asked, for a bounded time."""
        given, numbers = {root.partition: root for root in answer.roots or ()}, list(asked)
        last = max((at for at, number in enumerate(numbers) if number in given), default=0)
        for number in numbers if answer.roots is None else numbers[: last + 1]:
            for claim in self.claims(number):
                root = given.get(number)
                if root is None:
                    self.set_aside(claim, UNREAD)
                elif claim.root.vector != root.vector:
                    self.set_aside(claim, WRITTEN)
                elif claim.root.left == asked[number]:
                    self.decide(claim, root, "the node that was asked")

    def claims(self, number: int) -> list[StatedRoot]:
        """The claims to compare in a partition, the newest first."""
        return list(self._waiting.get(number, ()))

    def decide(self, claim: StatedRoot, root: StateRoot, whose: str) -> None:
        """Compare a claim with the root of the rows that are there, made at the same vector."""
        if root.left != claim.root.left:
            self.set_aside(claim, SWEPT)
            return
        self._drop(claim)
        if difference := claim.difference(root):
            self.findings.append(claim.finding(difference, whose))
        else:
            self.compared += 1
            self.agreed.setdefault(claim.root.partition, claim)

    def set_aside(self, claim: StatedRoot, why: str) -> None:
        """It cannot be compared."""
        self._drop(claim)
        self._aside.setdefault((claim.node, claim.time_ms), {}).setdefault(why, []).append(claim.root.partition)

    def told(self) -> list[str]:
        """The claims that were not compared, a line for each statement and reason."""
        old = [f"{_name(each.node, each.time_ms)} is of an older version: it says nothing of rows" for each in self._without()]
        return old + [
            f"{_name(*of)}: the rows of {len(numbers):,} partition{'' if len(numbers) == 1 else 's'} {why}"
            for of, reasons in self._aside.items()
            for why, numbers in reasons.items()
        ]

    def _without(self) -> list[Statement]:
        return [each for each in self._held if each.roots is None]

    def _drop(self, claim: StatedRoot) -> None:
        claims = self._waiting[claim.root.partition]
        claims.remove(claim)
        if not claims:
            del self._waiting[claim.root.partition]


def _name(node: bytes, time_ms: int) -> str:
    return f"the statement of node {node.hex()} at {time_ms}"


async def _walks(
    name: LogName, claims: list[StatedHead], call: Call | None, archives: Sequence[Archive], *, skew_ms: int
) -> list[Walk]:
    """Walks over the node's log, and over archives for the claims that the one before left; the last one's `gone` are left."""
    made: list[Walk] = []
    joint: list[StatedHead] = []  # Where the part that was walked begins, so that an archive must lead up to it.
    if call is not None:
        walk = Walk(name, claims, skew_ms=skew_ms)
        begins: LogPage | None = None
        while (after := walk.after) is not None:
            page: LogPage = await call(ReadLog(name.partition, name.origin, after, _PAGE))
            begins = begins or page
            walk.take(page)
        made.append(walk)
        claims = walk.gone
        if begins is not None and begins.base and claims:
            head = LogHead(name.partition, name.origin, begins.base, 0, begins.base_chain)
            joint = [StatedHead(head, b"", 0, is_own=False)]
    for archive in archives:
        page_held = archive.page(name)
        if page_held is None or not claims:
            continue
        within = [claim for claim in [*claims, *joint] if claim.head.sequence <= page_held.tip]
        walk = Walk(name, within, skew_ms=skew_ms)
        while walk.after is not None:
            walk.take(page_held)
        walk.gone = [claim for claim in walk.gone if claim.node]
        whole = next((head for head in archive.statement.heads if (head.partition, head.origin) == name), None)
        if whole is not None and whole.sequence > page_held.tip:
            text = f"{name}: the archive ends at operation {page_held.tip}, and its own statement covers {whole.sequence}"
            walk.findings.append(Finding(Kind.REMOVED, text))
        walk.gone += [claim for claim in claims if claim.head.sequence > page_held.tip]
        made.append(walk)
        claims = walk.gone
    if not made:
        empty = Walk(name, (), skew_ms=skew_ms)
        empty.gone = claims
        made.append(empty)
    return made


def _links(held: Iterable[Statement]) -> list[Finding]:
    """The faults in the statements of each node among themselves."""
    found: list[Finding] = []
    by_node: dict[bytes, list[Statement]] = {}
    for each in held:
        by_node.setdefault(each.node, []).append(each)
    for node, made in by_node.items():
        if len({statement.key for statement in made}) > 1:
            found.append(Finding(Kind.KEY_CHANGED, f"statements of node {node.hex()} are signed with different keys"))
        numbered = sorted((statement for statement in made if statement.number), key=lambda statement: statement.number)
        for before, after in pairwise(numbered):
            if before.number == after.number:
                found.append(Finding(Kind.FORKED, f"node {node.hex()} made two statements with number {after.number}"))
            elif after.number == before.number + 1 and after.previous != signing.digest(before):
                text = f"statement {after.number} of node {node.hex()} does not name statement {before.number}"
                found.append(Finding(Kind.UNLINKED, text))
    return found
