"""Decide which checkpoints of a thread a prune discards, and find the rows that can then be removed.

The checkpoints of a thread that a prune discards, and those that it keeps.

Laws:
- Planning reads a thread slice by slice and writes nothing. Discarding names a bounded number
  of ids at a time and checks each again: a checkpoint that has become a head or got a label meanwhile stays. Only a
  framework's saver, which finds its checkpoints by labels, lets heads without a label go.
- Each kept checkpoint is counted under the first reason that applies: a head; one of the last of its branch;
  young; labelled; the base of an open step; a fork; on another branch than the named one.

Find the rows of pruned checkpoints that are still needed, and those that can be removed.

Laws:
- A kept checkpoint can be read: the records and chunks that its recipes build on are kept.
- A kept chunk is named by a kept record, so that a peer which lacks both gets it with that
  record: a pruned record is kept, marked, as *bones*, if it alone names one.
- The rows that are kept do not depend on when a node sweeps: a save that names the chunks of a pruned
  record again keeps the chunks, and not the record, which other nodes may have removed before.
- A chunk that a save names during the marking is kept, even if the marking has passed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from shoal.config import Config
from shoal.crdt.dot import made_ms
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, NotFound, TooLarge
from shoal.kinds.journal.state.events import HLC_BYTES
from shoal.kinds.label import state as labels
from shoal.kinds.step import state as step_log
from shoal.kinds.thread.serving.saves import head_ids
from shoal.kinds.thread.serving.shapes import Reader
from shoal.kinds.thread.state import channel, dag, pruning
from shoal.kinds.thread.state import chunking as tree
from shoal.names import check_name
from shoal.node.handler import Checks, Maintainers, Piece, Readers, Upkeep, WriteContext, Writers
from shoal.node.naming import expired_hlc, unhex
from shoal.node.turns import Steps
from shoal.protocol.requests import Discard, Discarded, Prune, PruneReport
from shoal.records import NamedTuple

PRUNE_IDS_MAX = 512  # Checkpoints in one operation that prunes them, at most.
PRUNE_TOGETHER = 64  # In one of a standing prune: a save beside it waits for one such step, of some 1.5 ms.

SLICE = 32  # Records that are read, or removed, before other tasks get a turn.


def named(record: dag.Record) -> set[bytes]:
    """The digests of the chunks, and of the tree nodes over them, that came with a record."""
    return {digest for recipe in record.channels.values() for digest in recipe.added + recipe.nodes}


class Marking:
    """Finds the parts of `gone`, the pruned checkpoints, that the kept ones need."""

    def __init__(self, gone: set[bytes]) -> None:
        self.gone = gone
        self.used: set[bytes] = set()  # Digests.
        self._carried: set[bytes] = set()  # Those that a kept record names.
        self.bases: set[bytes] = set()  # Those of `gone` that recipes build on.
        self._nodes: set[bytes] = set()  # Tree nodes that were read.

    def run(self, rows: Callable[[], Rows]) -> Iterator[None]:
        """Read every kept record, a slice at a time. `rows` gives the rows as they are now."""
        after: bytes | None = None
        while True:
            here = rows()
            reader, count = Reader(here), 0
            for key, _ in here.scan(dag.CHECKPOINT, after=after, limit=SLICE):
                after, count = key, count + 1
                if key[1:] not in self.gone:
                    self._look(reader, key[1:])
            if count < SLICE:
                return
            yield

    def protect(self, record: dag.Record) -> None:
        """Keep what the record of a concurrent save needs."""
        self._carry(record)
        self.bases.update(recipe.base for recipe in record.channels.values() if recipe.base in self.gone)

    def is_bones(self, id: bytes, record: dag.Record) -> bool:
        """Whether a pruned record must be kept."""
        return id in self.bases or not self.used.isdisjoint(named(record) - self._carried)

    def unused(self, record: dag.Record) -> list[bytes]:
        """The digests that a record names and no kept checkpoint needs."""
        return sorted(named(record) - self.used)

    def _look(self, reader: Reader, id: bytes) -> None:
        record = reader.record(id)
        if record is None:
            return
        self._carry(record)
        for name, recipe in record.channels.items():
            if recipe.base in self.gone:
                self._look_below(reader, name, recipe)
            elif recipe.tops:
                self._walk(reader.rows, recipe.tops)

    def _carry(self, record: dag.Record) -> None:
        digests = named(record)
        self.used |= digests
        self._carried |= digests

    def _look_below(self, reader: Reader, name: str, recipe: channel.Recipe) -> None:
        recipes = reader.recipes(name)
        outline = channel.outline_of(recipe, recipes)
        older: channel.Recipe | None = recipe
        while older is not None and older.base in self.gone:
            self.bases.add(older.base)
            older = recipes(older.base)
        if outline is not None:
            self._walk(reader.rows, outline.tops)

    def _walk(self, rows: Rows, tops: tree.Tops) -> None:
        for height, level in enumerate(tops):
            for digest in level:
                self._enter(rows, digest, height)

    def _enter(self, rows: Rows, digest: bytes, height: int) -> None:
        self.used.add(digest)
        if height == 0 or digest in self._nodes:
            return
        self._nodes.add(digest)
        for child in tree.children(dag.chunk(rows, digest) or b""):
            self._enter(rows, child, height - 1)


def freed(rows: Rows, marking: Marking, ids: list[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """The rows of these pruned checkpoints that nothing needs, and what takes their place; None: nothing."""
    for id in ids:
        found = dag.checkpoint(rows, id)
        if found is not None:
            yield from ((dag.CHUNK + digest, None) for digest in marking.unused(found.record))
            if marking.is_bones(id, found.record):
                continue
            yield dag.CHECKPOINT + id, None
            yield dag.when_row(found.record.branch, found.wall_ms, id), None
        yield from [(row, None) for row, _ in rows.scan(dag.TWIN + id)]
        yield from pruning.swept_rows(rows, id).items()


_SLICE = 64  # Records that are read before others get a turn.
_COMPARED_AT_ONCE = 1024  # Checkpoints in memory that are looked at before others get a turn.
_LISTED_MAX = 10_000


class Plan(NamedTuple):
    """The outcome of planning: the checkpoints to discard, and counts of the others."""

    gone: list[bytes]  # Ids, the oldest first.
    stays: dict[str, int]  # Reason → how many.
    bytes: int  # Of the rows to be removed, as stored.


class Prunes:
    """The handler of prunes. A `Prune` is carried out as a plan and many `Discard`s."""

    def __init__(self, config: Config, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.checks: Checks = {Prune: self._check, Discard: self._check_discard}
        self.writers: Writers = {Discard: self._discard}
        self.readers: Readers = {}
        self.maintenance: Maintainers = {Prune: self._prune}

    def _check(self, request: Prune) -> None:
        check_name("thread", request.thread)
        if request.branch is not None:
            check_name("branch", request.branch)
        if request.keep_last is None and request.older_than_ms is None:
            raise InvalidInput("a prune needs keep_last, older_than or both. Nothing was written.")
        if request.keep_last is not None and request.keep_last < 1:
            raise InvalidInput("keep_last must be at least 1, because a branch's head is never pruned. Nothing was written.")
        if request.older_than_ms is not None and request.older_than_ms < 0:
            raise InvalidInput("older_than must not be negative. Nothing was written.")

    def _check_discard(self, request: Discard) -> None:
        check_name("thread", request.thread)
        if len(request.checkpoints) > PRUNE_IDS_MAX:
            raise TooLarge(
                f"at most {PRUNE_IDS_MAX} checkpoints can be pruned at once; these are "
                f"{len(request.checkpoints)}. Nothing was written."
            )
        for id in request.checkpoints:
            unhex(id)

    def _prune(self, rows: Callable[[], Rows], request: Prune) -> Upkeep:
        """Plan step by step, then discard the planned ids piece by piece. It needs no key: a repeat plans only what is left."""
        plan = yield from planned(rows, request, self._now_ms())
        ids = [id.hex() for id in plan.gone]
        if not request.dry_run:
            for start in range(0, len(ids), PRUNE_TOGETHER):
                piece = Discard(request.space, request.thread, ids[start : start + PRUNE_TOGETHER])
                yield Piece(piece, f"{start} checkpoints are pruned" if start else "")
        return PruneReport(ids[:_LISTED_MAX], len(ids), plan.stays, plan.bytes, request.dry_run)

    def _discard(self, context: WriteContext, request: Discard) -> Discarded:
        """Discard the named checkpoints, except heads that shall stay, labelled ones, and ids that do not exist."""
        rows = context.rows
        named = [id for id in dict.fromkeys(map(unhex, request.checkpoints)) if _goes(rows, id)]
        if request.heads and context.is_known_to_peers(dag.Drop("", [])):
            _drop(context, named)
        heads = head_ids(rows)
        gone = [id for id in named if id not in heads]
        if not gone:
            return Discarded([])
        moves = [token for token, _ in pruning.moves_to(rows, set(gone))]
        expired = expired_hlc(context.stamp.hlc, self._now_ms(), self._config.key_window_s)
        change = pruning.Prune(gone, moves, expired)
        context.apply(change)
        return Discarded([id.hex() for id in gone])


def _drop(context: WriteContext, ids: list[bytes]) -> None:
    """Take these from the heads of the branches on which they were saved. A branch that was made at one keeps it."""
    by_branch: dict[str, set[bytes]] = {}
    for id in ids:
        found = dag.checkpoint(context.rows, id)
        if found is not None:
            by_branch.setdefault(found.record.branch, set()).add(id)
    for branch, gone in by_branch.items():
        if over := [head.token for head in dag.heads(context.rows, branch) if head.id in gone]:
            context.apply(dag.Drop(branch, over))


def _goes(rows: Rows, id: bytes) -> bool:
    found = dag.shown(rows, id)
    return found is not None and not _labelled(rows, found.record.label, id)


def _labelled(rows: Rows, label: str, id: bytes) -> bool:
    return bool(label) and any(entry.id == id for entry in labels.entries(rows, label))


Planning = Steps[Plan]


def planned(rows: Callable[[], Rows], request: Prune, now_ms: int, *, sized: bool = True) -> Planning:
    """Plan a prune; each step takes a bounded time. `rows` gives the thread's rows as they are now.

    `sized`: count the bytes too, which reads all that goes once more.

    Raises:
        NotFound: the named branch does not exist.
    """
    if request.branch is not None and not dag.heads(rows(), request.branch):
        raise NotFound(
            f"thread {request.thread!r} has no branch {request.branch!r}. Nothing was written. List them with branches()."
        )
    pruned = yield from _pruned(rows)
    leads = yield from _leads(rows, pruned)
    stays = yield from _staying(rows, leads, request, now_ms)
    gone = yield from _ordered([(lead.hlc, id) for id, lead in leads.items() if id not in stays])
    size = (yield from _bytes(rows, gone, pruned)) if sized else 0
    return Plan(gone, dict(Counter(stays.values())), size)


def _pruned(rows: Callable[[], Rows]) -> Steps[set[bytes]]:
    found: set[bytes] = set()
    after: bytes | None = None
    while True:
        some = [id for id, _ in pruning.marks(rows(), after=after, limit=_SLICE)]
        found.update(some)
        if len(some) < _SLICE:
            return found
        after = some[-1]
        yield


def _leads(rows: Callable[[], Rows], pruned: set[bytes]) -> Steps[dict[bytes, dag.Lead]]:
    found: dict[bytes, dag.Lead] = {}
    after: bytes | None = None
    while True:
        some = list(dag.leads(rows(), after=after, limit=_SLICE))
        found.update((lead.id, lead) for lead in some if lead.id not in pruned)
        if len(some) < _SLICE:
            return found
        after = some[-1].id
        yield


def _staying(rows: Callable[[], Rows], leads: dict[bytes, dag.Lead], request: Prune, now_ms: int) -> Steps[dict[bytes, str]]:
    """The checkpoints that stay, each with the first reason that holds."""
    stays = {id: "head" for id in head_ids(rows()) if id in leads}
    for head in list(stays):
        yield from _keep(stays, "recent", _line(leads, head, request.keep_last or 1))
    if (older_than_ms := request.older_than_ms) is not None:
        young_ms = now_ms - older_than_ms
        young = (id if made_ms(lead.hlc, lead.wall_ms, now_ms) > young_ms else None for id, lead in leads.items())
        yield from _keep(stays, "young", young)
    yield from _keep(stays, "labelled", (id if _labelled(rows(), lead.label, id) else None for id, lead in leads.items()))
    yield from _keep(stays, "open step", _begun_at(rows(), leads))
    yield from _keep(stays, "fork", _forks(leads))
    if request.branch is not None:
        elsewhere = (id if lead.branch != request.branch else None for id, lead in leads.items())
        yield from _keep(stays, "other branch", elsewhere)
    return stays


def _keep(stays: dict[bytes, str], reason: str, looked_at: Iterable[bytes | None]) -> Steps[None]:
    """Of all that is looked at, None does not stay for this reason."""
    for count, id in enumerate(looked_at, 1):
        if id is not None:
            stays.setdefault(id, reason)
        if count % _COMPARED_AT_ONCE == 0:
            yield


def _ordered(placed: list[tuple[int, bytes]]) -> Steps[list[bytes]]:
    """Ids by their times: sorted in pieces, which are merged, because one sort of very many would take long."""
    runs: list[list[tuple[int, bytes]]] = []
    for start in range(0, len(placed), _COMPARED_AT_ONCE):
        runs.append(sorted(placed[start : start + _COMPARED_AT_ONCE]))
        yield
    found: list[bytes] = []
    for _, id in merge(*runs):
        found.append(id)
        if len(found) % _COMPARED_AT_ONCE == 0:
            yield
    return found


def _line(leads: dict[bytes, dag.Lead], head: bytes, count: int) -> Iterator[bytes]:
    """The last `count` checkpoints up to a head, along first parents."""
    id: bytes | None = head
    while id in leads and count > 0:
        yield id
        parents = leads[id].parents
        id, count = parents[0] if parents else None, count - 1


def _begun_at(rows: Rows, leads: dict[bytes, dag.Lead]) -> Iterator[bytes | None]:
    """For each branch, the checkpoint on which an open step was begun: the last one before its intent. None: looked at."""
    for step in [key for _, key in step_log.listing(rows, only_open=True)]:
        entry = step_log.find(rows, step)
        for attempt in () if entry is None else entry.open_attempts:
            hlc = int.from_bytes(attempt.position[:HLC_BYTES], "big")
            last: dict[str, dag.Lead] = {}
            for lead in leads.values():
                if lead.hlc < hlc and (lead.branch not in last or last[lead.branch].hlc < lead.hlc):
                    last[lead.branch] = lead
                yield None
            yield from (lead.id for lead in last.values())


def _forks(leads: dict[bytes, dag.Lead]) -> Iterator[bytes | None]:
    """Checkpoints with more than one child, or with a child on another branch. None: looked at."""
    children: dict[bytes, str | None] = {}  # The branch of the only child so far; None: there are more.
    for lead in leads.values():
        for parent in lead.parents:
            children[parent] = lead.branch if parent not in children else None
        yield None
    for id, branch in children.items():
        yield id if id in leads and (branch is None or branch != leads[id].branch) else None


def _bytes(rows: Callable[[], Rows], gone: list[bytes], pruned: set[bytes]) -> Steps[int]:
    """The number of stored bytes that discarding these frees."""
    marking = Marking(pruned | set(gone))
    yield from marking.run(rows)
    total, counted = 0, set[bytes]()
    for start in range(0, len(gone), _SLICE):
        here = rows()
        for id in gone[start : start + _SLICE]:
            found, packed = dag.checkpoint(here, id), dag.packed_record(here, id)
            if found is None or packed is None:
                continue
            total += 0 if marking.is_bones(id, found.record) else len(packed)
            for digest in set(marking.unused(found.record)) - counted:
                counted.add(digest)
                total += dag.chunk_size(here, digest) or 0
        yield
    return total
