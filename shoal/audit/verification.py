"""Statements against a node's logs, and against archives.

Laws:
- Nothing that the node says is believed but what its logs prove.
- A claim is proved, contradicted or gone from the logs: the report counts each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from shoal.audit import statements as signing
from shoal.audit.archive import Archive, Call
from shoal.audit.chains import Claim, Finding, Kind, LogName, Walk, claims_of, contradictions
from shoal.protocol.requests import LogHead, LogPage, ReadLog, Statement
from shoal.records import NamedTuple

SKEW_MS = 60_000
"""By how much a node's clock may be set back between a statement and its next operation."""

_PAGE = 1000


class Report(NamedTuple):
    """What was checked."""

    statements: int
    logs: int
    proved: int  # Claims: that one log had one chain hash after one operation.
    gone: int  # Claims on operations that have left the log, and are in no archive.
    operations: int  # Whose bytes were proved.
    findings: Sequence[Finding]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong. What is gone is not wrong; it is not proved."""
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
    claims = claims_of(held)
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
    return Report(len(held), len(claims), proved, gone, operations, findings)


async def _walks(
    name: LogName, claims: list[Claim], call: Call | None, archives: Sequence[Archive], *, skew_ms: int
) -> list[Walk]:
    """Walks over the node's log, and over archives for the claims that the one before left; the last one's `gone` are left."""
    made: list[Walk] = []
    joint: list[Claim] = []  # Where the part that was walked begins, so that an archive must lead up to it.
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
            joint = [Claim(head, b"", 0, is_own=False)]
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
    """What is wrong with the statements of each node among themselves."""
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
