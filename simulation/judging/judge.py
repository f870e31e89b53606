"""The verdict on a run: every promise that its end, or anything on the way to it, shows broken.

Laws:
- Before anything is healed the disks are counted: what a client was told that a quorum, or all, hold is on so many,
  and so outlives the loss of any minority (`lost_with_a_minority`).
- Then the cluster is healed. First every node must serve, and all must come to
  hold the same, within bounds of virtual time. Then the disks are compared, before
  anything is read that a read could mend. Then everything is read from every node
  through a session of its own, and held against all that the clients were told, and
  the disks are compared again.
- Each check is told by the number of its invariant in docs/VERIFICATION.md. All are
  made, whatever the others find.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from shoal.crdt.rows import successor
from shoal.errors import ShoalError
from shoal.kinds.tiering.state import RULES, Rule, key_of, packed
from shoal.names import RESERVED
from shoal.node.peers.replica import EARLY_OPERATIONS_S
from shoal.protocol.requests import Durability, PutEntry
from shoal.protocol.session import Session
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.judging import checkers, packs
from simulation.judging.backups import BackupWatch, judge_backup
from simulation.judging.checkers import DotLedger, InvariantViolated
from simulation.judging.found import Found, find
from simulation.judging.history import Failed, History, LetGo, Place, Refused
from simulation.judging.ledger import Ledger
from simulation.judging.obligations import Losses, owed
from simulation.judging.replicas import check_replicas
from simulation.judging.sessions import check_sessions
from simulation.judging.violation import Violation
from simulation.parts.secrets import FAMILY as SECRETS
from simulation.parts.secrets import Secrets
from simulation.workload.probing import ask
from simulation.workload.random_agents import SPACE
from simulation.world.client import Client
from simulation.world.disk import is_truncated, passes, tips_on

if TYPE_CHECKING:
    from simulation.workload.agents import Agents
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

__all__ = ["Violation", "judge", "lost_with_a_minority"]

CONVERGED_S_MAX = 60.0
"""Healed, all nodes hold the same within this virtual time."""

SETTLED_S_MAX = 5.0
"""Healed, and holding the same, all that was written is durable within this virtual time."""

SERVES_S_MAX = 20.0
"""Healed, every node takes a write within this virtual time."""

SUPPLIED_S_MAX = 60.0
"""Healed, and holding the same, what saves build on has come from peers within this virtual time, if one has it."""

SWEPT_S_MAX = 60.0
"""Healed, and holding the same, all nodes have swept what was erased within this virtual time."""

SCRUBBED_S_MAX = 30.0
"""Healed, and holding the same, altered rows are noticed and replaced within this virtual time."""

READ_S_MAX = 60.0
"""To read everything from one node."""

_OF_THE_NODE = (keys.META, keys.SNAPSHOT, keys.INDEX, keys.STAGED)
"""Tables that differ between nodes that hold the same operations: who they are, how far they have folded a document, and
how far they have built an index."""

_TRUNCATED = (keys.LOG, keys.BASE, keys.RETIRED, keys.KEY)
"""Tables that differ as well if nodes truncate their logs."""

TO_BE_EXPECTED = frozenset(
    (
        "session-behind",
        "catching-up",
        "bookmark-lost",
        "overloaded",
        "no-quorum",
        "shutting-down",
        "disconnected",
        "unreachable",  # The same, of a client that was never linked.
        "outcome-unknown",
        "unavailable",
        "read-only",
        "clock-wrong",
        "storage-full",
        "store-corrupt",
        "slow-consumer",
        "not-ready",
        "head-moved",
        "key-reused",
        "deleted-meanwhile",
        "too-many-siblings",
    )
)
"""What faults, and other agents, may let a client be told. Any other error is a promise broken."""


class Patience:
    """How long nodes are waited for. What they did not do in time is broken, and nobody waits for it again."""

    def __init__(self) -> None:
        self.converged_s = CONVERGED_S_MAX
        self.swept_s = SWEPT_S_MAX


async def judge(cluster: SimulatedCluster, agents: Agents) -> list[Violation]:
    """Everything that is broken, what was seen on the way included. No act is under way any more."""
    await agents.finish()
    found: list[Violation] = []
    patience = Patience()
    await _serves(cluster, agents, "local")
    found += await _converges(cluster, patience)
    await _serves(cluster, agents, "quorum")
    found += await _converges(cluster, patience)
    await _supplied(cluster)
    found += await _sweeps(cluster, patience)
    found += await _scrubs(cluster)
    found += await _converges(cluster, patience)  # Nodes spread rights to budgets of themselves, at any time.
    found += _swept_early(cluster, Losses(agents.plan))
    is_tiered = packs.tiers(agents.plan)
    untidy = await packs.tidied(cluster, agents.plan) if is_tiered else []
    found += untidy
    disks = Disks(cluster)
    found += disks.broken("before anything was read")
    await agents.close()
    if agents.backup is not None:
        found += await _backed_up(cluster, agents, agents.backup)
    founds = {name: one for name in cluster.hosts if (one := await _read(cluster, agents, name, found)) is not None}
    found += judged(agents.history, Losses(agents.plan), founds, agents.ledger)
    found += await _converges(cluster, patience)  # A document that is read may be compacted, by an operation of its own.
    found += await _sweeps(cluster, patience)
    found += disks.broken("after everything was read")
    found += _erased(cluster, agents)
    found += await _all_back(cluster, agents) if is_tiered and not untidy else []
    return [*agents.violations, *found]


async def _backed_up(cluster: SimulatedCluster, agents: Agents, watch: BackupWatch) -> list[Violation]:
    judged = await judge_backup(cluster, agents.plan, watch)
    secrets = agents.parts[SECRETS]
    assert isinstance(secrets, Secrets)
    for storage in judged.restored:
        secrets.sightings.restored(storage)
    return judged.violations


def lost_with_a_minority(cluster: SimulatedCluster, agents: Agents) -> None:
    """Note what was acknowledged, and would be lost with some nodes that may be: while nothing is healed yet."""
    for text in agents.ledger.lacking({name: host.disk.copy() for name, host in cluster.hosts.items()}):
        agents.record.violated("3", text)


# ── once it is healed ─────────────────────────────────────────────────────────


async def _serves(cluster: SimulatedCluster, agents: Agents, durability: Durability) -> None:
    for name in cluster.hosts:
        random = agents.plan.random_for(f"healed/{name}/{durability}")
        client = Client(cluster, [name], name=f"healed-{name}", random=random)
        await ask(client, agents.record, agents.plan, durability=durability, patience_s=SERVES_S_MAX)


async def _converges(cluster: SimulatedCluster, patience: Patience) -> list[Violation]:
    try:
        await cluster.converged(patience.converged_s)
    except TimeoutError:
        patience.converged_s = 0.0
        held = "; ".join(f"{name} holds {_operations(host)}" for name, host in cluster.hosts.items())
        return [Violation("4", f"healed, the nodes did not come to hold the same within {CONVERGED_S_MAX:g} s: {held}")]
    if any(host.peer.quorum.view().early for host in cluster.hosts.values() if host.up):
        # What they depend on was lost with a disk: they are forgotten in time.
        await asyncio.sleep(EARLY_OPERATIONS_S + cluster.config.sync_interval_s * 2)
    await _settled(cluster)
    return [
        Violation("4", f"healed, and equal, {name} still has {what}")
        for name, host in cluster.hosts.items()
        for what in _waits(host)
    ]


async def _settled(cluster: SimulatedCluster) -> None:
    """What nodes write of themselves, sweeping, compacting and drawing rights, ends as well, and the disks take it soon."""
    ends_at = asyncio.get_running_loop().time() + SETTLED_S_MAX
    while any(host.up and (host.node.writes_pending or host.node._database.budgets.unsure) for host in cluster.hosts.values()):
        if asyncio.get_running_loop().time() >= ends_at:
            return
        await asyncio.sleep(cluster.config.tick_s)


async def _supplied(cluster: SimulatedCluster) -> None:
    """What saves build on, and was swept, has come from peers, or nobody gave it."""
    ends_at = asyncio.get_running_loop().time() + SUPPLIED_S_MAX
    while any(host.up and host.peer.scrubber.fetches for host in cluster.hosts.values()):
        if asyncio.get_running_loop().time() >= ends_at:
            return  # What is lacking shows on the disks.
        await asyncio.sleep(cluster.config.tick_s)


async def _sweeps(cluster: SimulatedCluster, patience: Patience) -> list[Violation]:
    """All hold all: what was erased is gone soon."""
    ends_at = asyncio.get_running_loop().time() + patience.swept_s
    while left := [name for name, host in cluster.hosts.items() if _garbage(host)]:
        if asyncio.get_running_loop().time() >= ends_at:
            patience.swept_s = 0.0
            return [Violation("15", f"healed, and equal, {name} has not swept what was erased") for name in left]
        await asyncio.sleep(cluster.config.sync_interval_s)
    return []


async def _scrubs(cluster: SimulatedCluster) -> list[Violation]:
    """All hold all: what a disk has altered is noticed and replaced soon; and nothing else is taken for altered."""
    if cluster.altered:
        ends_at = asyncio.get_running_loop().time() + SCRUBBED_S_MAX
        while left := [name for name, host in cluster.hosts.items() if host.peer.scrubber.told or _altered(cluster)]:
            if asyncio.get_running_loop().time() >= ends_at:
                return [Violation("20", f"healed, and equal, {name} has rows that differ: {_told(cluster)}") for name in left]
            await asyncio.sleep(cluster.config.sync_interval_s)
    alarms = {name: (host.noticed | host.peer.scrubber.noticed) - cluster.altered for name, host in cluster.hosts.items()}
    return [
        Violation("4", f"{name} noticed at equal vectors that rows of {object[:60]!r} differ")
        for name, noticed in alarms.items()
        for object in sorted(noticed)
    ]


def _swept_early(cluster: SimulatedCluster, losses: Losses) -> list[Violation]:
    """Only a node that was set back may save on what the others have swept: they sweep what nobody can build on any more."""
    if losses.of_disks or losses.of_members:
        return []
    return [
        Violation("15", f"{name} had swept what a save in {object[:60]!r} builds on")
        for name, host in cluster.hosts.items()
        for object in sorted(host.incomplete | host.peer.scrubber.incomplete)
    ]


def _altered(cluster: SimulatedCluster) -> bool:
    """Whether any object of which a row was altered has other rows on one node than on another."""
    held = [host.disk.copy() for host in cluster.hosts.values()]
    return any(
        len({tuple(_lasting(dict(disk.scan(name, successor(name)))).items()) for disk in held}) > 1
        for name in sorted(cluster.altered)
    )


def _told(cluster: SimulatedCluster) -> str:
    told = [text for host in cluster.hosts.values() for text in host.peer.scrubber.told]
    return "; ".join(told) or "nobody noticed"


def _garbage(host: SimulatedNode) -> int:
    return sum(1 for _ in host.disk.copy().scan(keys.GARBAGE, successor(keys.GARBAGE)))


def _operations(host: SimulatedNode) -> str:
    if not host.up:
        return "nothing, for it is down"
    view = host.peer.quorum.view()
    operations = sum(tip.sequence for tip in tips_on(host.disk.copy()).values())
    return f"{operations} operations, {view.early} early; {'; '.join(view.quarantined) or 'none quarantined'}"


def _waits(host: SimulatedNode) -> Iterator[str]:
    view = host.peer.quorum.view()
    if view.early:
        yield f"{view.early} operations that wait for others"
    if host.node.writes_pending:
        yield f"{host.node.writes_pending} writes that wait for the disk"


async def _read(cluster: SimulatedCluster, agents: Agents, name: str, found: list[Violation]) -> Found | None:
    """By a session for each part: a watch that goes on has seen what its bookmark names, which may be lost with a disk."""
    losses = Losses(agents.plan)
    try:
        async with asyncio.timeout(READ_S_MAX):
            for family, part in agents.parts.items():
                async with _session(cluster, agents, name, family) as session:
                    broken = await part.broken(session, losses)
                found += [Violation(violation.invariant, f"on {name}: {violation.text}") for violation in broken]
            async with _session(cluster, agents, name, "all") as session:
                return await find(session)
    except (ShoalError, TimeoutError) as error:
        found.append(Violation("9", f"healed, {name} cannot be read: {error!r}"))
        return None


@asynccontextmanager
async def _session(cluster: SimulatedCluster, agents: Agents, name: str, purpose: str) -> AsyncIterator[Session]:
    client = Client(cluster, [name], name=f"judge-{name}", random=agents.plan.random_for(f"judge/{name}/{purpose}"))
    try:
        yield client.session
    finally:
        await client.session.close()


async def _all_back(cluster: SimulatedCluster, agents: Agents) -> list[Violation]:
    """Tiering is switched off, in the end: all comes back, and the bucket is empty but for what nobody has any more."""
    if found := await packs.tidied(cluster, agents.plan):
        return found
    async with _session(cluster, agents, next(iter(cluster.hosts)), "unset-tiering") as session:
        rule = Rule(SPACE, "", 0)
        await session.call(PutEntry(RESERVED, RULES, key_of(SPACE), packed(rule)), durability="quorum")
    return await packs.tidied(cluster, agents.plan, all_back=True)


# ── what clients were told ────────────────────────────────────────────────────


def judged(history: History, losses: Losses, founds: dict[str, Found], ledger: Ledger) -> list[Violation]:
    """What was found on each node, held against what the clients were told."""
    due = owed(history, losses)
    checks: list[tuple[str, Callable[[], None]]] = []
    for name, found in founds.items():
        for held_to, check in _ON_EACH_NODE:
            checks.append((name, partial(check, due if held_to == "due" else history, found)))
    checks += [
        ("", lambda: check_replicas(founds)),
        ("", lambda: check_sessions(history, Found(parents=dict(ledger.parents)))),
        ("", lambda: check_repeats(history)),
        ("", lambda: check_shown(history, ledger)),
        ("", lambda: check_errors(history, losses)),
    ]
    return [violation for name, check in checks for violation in _broken(name, check)]


def _broken(node: str, check: Callable[[], None]) -> Iterator[Violation]:
    try:
        check()
    except InvariantViolated as violated:
        where = f" on {node}" if node else ""
        for culprit in violated.culprits:
            yield Violation(violated.invariant, f"{violated.what}{where}: {culprit}")


def check_batches(history: History, found: Found) -> None:
    """A batch is there whole or not at all.

    Raises:
        InvariantViolated: some of its writes are there, and others are not.
    """
    torn = []
    for name in {write.name for write in history.writes.values() if write.batch}:
        saved = set(found.numbers(Place("save", name)))
        appended = set(found.numbers(Place("append", name)))
        added = 0
        for write in history.writes.values():
            if write.batch and write.name == name and write.kind == "append":
                if (write.number in appended) != (write.batch in saved):
                    torn.append(f"of the batch of save {write.batch} of {name} only one of save and append is there")
            elif write.batch and write.name == name and write.batch in saved:
                added += history.amount(write.number)
        if found.counters.get(name, 0) != added:
            torn.append(f"counter {name} holds {found.counters.get(name, 0)}, and the batches that are there added {added}")
    if torn:
        raise InvariantViolated("6", "a batch is there in part", torn)


def check_repeats(history: History) -> None:
    """
    Raises:
        InvariantViolated: one save, sent again with its key, was answered with two checkpoints.
    """
    two = [
        f"save {number} of {write.name} made {' and '.join(sorted(ids))}"
        for number, write in history.writes.items()
        if write.kind == "save" and len(ids := {answer.id for answer in history.answers[number]}) > 1
    ]
    if two:
        raise InvariantViolated("6", "a request that was sent again was applied twice", two)


def check_shown(history: History, ledger: Ledger) -> None:
    """
    Raises:
        InvariantViolated: a read showed what was never written, or never stored.
    """
    invented = [
        f"{place.kind} {number} of {place.name}"
        for place, numbers in history.seen_numbers.items()
        for number in sorted(numbers)
        if number not in history.writes or history.writes[number].place != place
    ]
    for place, values in history.seen_sums.items():
        for value in values:
            adds = history.adds_in(place, value) or {}
            invented += [f"an add to {place.name}" for number in adds if not number]
            invented += [f"add {number} to {place.name} {times} times" for number, times in adds.items() if times > 1]
    invented += [
        f"checkpoint {id[:16]} of {place.name}"
        for place, ids in history.seen_ids.items()
        for id in sorted(ids - ledger.parents[place.name].keys())
    ]
    if invented:
        raise InvariantViolated("10", "a read showed what nobody wrote", invented)


def check_errors(history: History, losses: Losses) -> None:
    """
    Raises:
        InvariantViolated: a client was told what neither a fault nor another agent explains.
    """
    excused = {"key-expired": losses.of_windows, "not-a-member": losses.of_removals}
    excused |= dict.fromkeys(("cold", "backup-unreachable"), losses.of_buckets)
    expected = TO_BE_EXPECTED.union(code for code, is_excused in excused.items() if is_excused)
    unexpected = [
        f"{_whose(history, event)}: {event.code}"
        for event in history.events
        if isinstance(event, Failed | Refused | LetGo) and event.code not in expected
    ]
    if unexpected:
        raise InvariantViolated("9", "a request was refused for no reason", unexpected)


def _whose(history: History, event: Failed | Refused | LetGo) -> str:
    if isinstance(event, Failed):
        write = history.writes[event.number]
        return f"{write.kind} {write.number} of {write.name} at {event.node}"
    return f"{event.session}, {event.name}"


_ON_EACH_NODE: tuple[tuple[Literal["due", "all"], Callable[[History, Found], None]], ...] = (
    ("due", checkers.check_nothing_invented),
    ("due", checkers.check_acknowledged),
    ("due", checkers.check_remembered),
    ("due", checkers.check_seen),
    ("due", checkers.check_counters),
    ("all", checkers.check_refused),
    ("all", check_batches),
)


# ── what disks hold ───────────────────────────────────────────────────────────


class Disks:
    """The rows of all nodes; each disk is checked by itself when it holds what none held before."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._dots = DotLedger()
        self._checked: list[dict[bytes, bytes]] = []
        self._told: set[Violation] = set()

    def broken(self, when: str) -> list[Violation]:
        """What is wrong with them now, and was not told before."""
        storages = {name: packs.filled(host.disk.copy(), self._cluster.attic) for name, host in self._cluster.hosts.items()}
        found: list[Violation] = []
        for name, storage in storages.items():
            rows = _rows(storage, without=(keys.META,))
            if rows not in self._checked:
                self._checked.append(rows)
                found += _broken(name, partial(self._check, storage))
        truncated = any(map(is_truncated, storages.values()))
        without = _OF_THE_NODE + _TRUNCATED if truncated else _OF_THE_NODE
        found += _unequal({name: _lasting(_rows(storage, without=without)) for name, storage in storages.items()})
        new = [violation for violation in found if violation not in self._told]
        self._told.update(new)
        return [Violation(violation.invariant, f"{when}: {violation.text}") for violation in new]

    def _check(self, storage: MemoryStorage) -> None:
        checkers.check_storage(History(), storage, dots=self._dots, config=self._cluster.config)


def _erased(cluster: SimulatedCluster, agents: Agents) -> list[Violation]:
    """What must be gone from every disk, and is not."""
    losses = Losses(agents.plan)
    gone = [piece for part in agents.parts.values() for piece in part.erased(losses)]
    found = []
    for name, host in cluster.hosts.items() if gone else ():
        rows = [key for key, _ in host.disk.copy().scan(keys.OBJECT, successor(keys.OBJECT))]
        left = sum(any(piece in key for key in rows) for piece in gone)
        if left:
            found.append(Violation("15", f"{name} has rows of {left} checkpoints that were deleted"))
    return found


def _rows(storage: MemoryStorage, *, without: tuple[bytes, ...]) -> dict[bytes, bytes]:
    return {key: value for key, value in storage.scan(b"", None) if key[:1] not in without}


def _lasting(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Without the rows that nodes remove at different times."""
    return {key: value for key, value in rows.items() if key[:1] != keys.OBJECT or not passes(key)}


def _unequal(rows: dict[str, dict[bytes, bytes]]) -> list[Violation]:
    first = next(iter(rows))
    unequal = []
    for name, held in rows.items():
        differing = sorted(key for key in held.keys() | rows[first].keys() if held.get(key) != rows[first].get(key))
        if differing:
            text = f"{len(differing)} rows of {first} and {name} differ, the first is {differing[0][:60]!r}"
            unequal.append(Violation("4", text))
    return unequal
