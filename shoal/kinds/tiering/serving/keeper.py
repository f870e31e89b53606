"""The task of a node that carries out the rules of tiering.

Laws:
- Each node moves its own copy, to a place of its own, and asks nobody: what is moved is what it stores, and nothing that it
  tells others changes. A wrong clock moves something too early, which comes back when it is read.
- A thread moves if it is known to be idle, nothing in it waits, and nothing of it came back within the same time. Files move at
  the next look, where the rule says that they stay in the object store.
- A look reads in steps. It takes at most one part in `LOOK_SHARE` of the time.
- A bucket that fails is tried again at the next look, and holds up no other space. What failed is told.
- In a store that was made of a backup a rule moves nothing until it is set once more: a store that somebody looks into must not
  fill a bucket.
- What is told of a space names no other, and no thread.
- A directory is used only if the operator allows it, as for backups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from shoal.errors import BackupUnreachable, InvalidInput, ReadOnly, ShoalError, StorageFull, StoreCorrupt
from shoal.kinds.retention.serving.threads import is_idle
from shoal.kinds.tiering import state
from shoal.kinds.tiering.requests import ReadTiering, RunTiering, TieringView, TryTiering
from shoal.kinds.tiering.state import Rule
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import RESERVED, check_name
from shoal.node.backup.backups import check_place, tried
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.replicas import Replicas
from shoal.node.tiering.mover import Held, Mover
from shoal.node.turns import in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import ReadMap, RetainThread
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.keys import Kind

TIERING_LOOK_S = 60.0  # Between two looks.
LOOK_SHARE = 10

_RECORDS = Target(Kind.MAP, RESERVED, state.RULES)
_PAGE = 256
_PAGES_MAX = 16  # Of rules; those beyond are not carried out.
_QUIET_MAX = 65_536  # Threads of which is known that nothing goes.
_QUIET = 20  # For one part in so many of the rule's time, unless something is written.
_FILES_MS = 24 * 3_600_000  # As the time of a rule that is about files alone.
_PROBE_BYTES = 16
_COUNTED_MAX = 10_000  # Threads of a dry run.


class _Quiet(NamedTuple):
    written: int
    rule: Rule
    until_ms: int


class TieringKeeper:
    """Carries out the rules of tiering on one node."""

    def __init__(self, context: NodeContext, database: Database, *, replicas: Replicas, restored_ms: Callable[[], int]) -> None:
        """`restored_ms`: when the backup was made of which this store is, by its rules; 0: it is of none."""
        self._restored_ms = restored_ms
        self._context = context
        self._commit = context.commit
        self._partitions = context.partitions
        self._environment = context.environment
        self._database = database
        self._replicas = replicas
        self._chunks = database.chunks
        self.mover = Mover(context, database)
        self._quiet: dict[Target, _Quiet] = {}
        self._task: asyncio.Task[None] | None = None
        self.troubles: dict[str, str] = {}
        """By space, why something is not done, for people. No name of a thread is in it."""
        self.last_ms = 0
        """When the last look ended; 0: none has."""
        self.answers: Answers = {ReadTiering: self._view, TryTiering: self._try, RunTiering: self._run_now}

    @property
    def figures(self) -> dict[str, Any]:
        """The fields of the status of the node that are about this."""
        return {
            "tiering_away_bytes": sum(held.bytes for held in self.mover.away.values()),
            "tiering_moved_bytes": self.mover.moved_bytes,
            "tiering_fetched": self._chunks.fetched,
            "tiering_fetched_bytes": self._chunks.fetched_bytes,
            "tiering_failed": self._chunks.failed,
            "tiering_trouble": next((f"space {space!r}: {told}" for space, told in sorted(self._troubled.items())), ""),
        }

    def start(self) -> None:
        """Begin to look, on the running loop."""
        with suppress(ShoalError):  # A look tells.
            self._stay(self.rules() if self._is_used() else {})
        self._task = self._context.upkeep.begin(self._run(), "tiering")

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = TIERING_LOOK_S
        while self._commit.failed is None:
            await asyncio.sleep(pause_s)
            began = self._environment.monotonic()
            with suppress(ShoalError):  # Storage rejects writes, or cannot be read. A later look tries again.
                await self.look()
            pause_s = max(TIERING_LOOK_S, (self._environment.monotonic() - began) * (LOOK_SHARE - 1))

    async def look(self, only: str | None = None) -> None:
        """Carry out all rules, or the one of a space.

        Raises:
            ShoalError: storage rejects writes, or cannot be read.
        """
        rules = self.rules() if self._is_used() else {}
        troubles: dict[str, str] = {}
        self._stay(rules)
        for space, rule in sorted(rules.items()):
            if rule.url and only in (None, space):
                if told := rule.trouble or await self._space(rule):
                    troubles[space] = told
            elif space in self.troubles:
                troubles[space] = self.troubles[space]
        if self._context.storage.armed or rules:
            returning = [space for space, rule in rules.items() if not rule.url]
            troubles |= await self.mover.tidy(returning)
            self._chunks.troubles = {space: why for space, why in self._chunks.troubles.items() if space in self.mover.away}
        for space, told in troubles.items():
            if told != self.troubles.get(space):
                log(events.TIERING_TROUBLE, reason=told)
        self.troubles, self.last_ms = troubles, self._environment.now_ms()

    def _stay(self, rules: Mapping[str, Rule]) -> None:
        self._chunks.staying = frozenset(space for space, rule in rules.items() if rule.url and rule.files)

    @property
    def _troubled(self) -> dict[str, str]:
        return self._chunks.troubles | self.troubles

    def _is_used(self) -> bool:
        """Whether there may be rules, and what is known of them is the cluster's."""
        return self._database.catalog.holds(_RECORDS) and not self._replicas.refilling

    def rules(self) -> dict[str, Rule]:
        """All rules by space, as they were applied here."""
        found: dict[str, Rule] = {}
        after: str | None = None
        for _ in range(_PAGES_MAX):
            page: Any = self._database.show(ReadMap(RESERVED, state.RULES, after=after, limit=_PAGE), _RECORDS)
            for entry in page.entries:
                after = entry.key
                rule = state.read(entry.key, [(sibling.value, sibling.wall_ms) for sibling in entry.siblings])
                if rule is not None and rule.space != RESERVED:
                    found[rule.space] = state.held_back(rule, self._restored_ms())
            if not page.more:
                break
        return found

    # ── one space ─────────────────────────────────────────────────────────────

    async def _space(self, rule: Rule) -> str:
        """Move what is idle in a space. Returns why it ended early, for people; empty if it did not."""
        after: str | None = None
        try:
            check_place(self._context.config, rule.url, "chunks")
            while names := self._database.catalog.names(rule.space, Kind.THREAD, prefix="", after=after, limit=_PAGE):
                for after in names:
                    with suppress(StoreCorrupt):  # This thread is damaged: it is told where it is read.
                        await self._thread(Target(Kind.THREAD, rule.space, after), rule)
                await self._environment.pause()
        except (StorageFull, ReadOnly):
            raise
        except ShoalError as error:
            return error.message
        return ""

    async def _thread(self, target: Target, rule: Rule) -> None:
        now_ms, quiet = self._environment.now_ms(), self._quiet.get(target)
        written = self._partitions.written(target.partition)
        if quiet is not None and (quiet.written, quiet.rule) == (written, rule) and now_ms < quiet.until_ms:
            return
        if self._partitions.load(target.partition).closed:
            return
        if rule.files:
            await self.mover.move(target, rule.url, files=True)
            written = self._partitions.written(target.partition)
        if await self._is_due(target, rule):
            await self.mover.move(target, rule.url)
            written = self._partitions.written(target.partition)
        self._quiet.pop(target, None)
        self._quiet[target] = _Quiet(written, rule, now_ms + (rule.idle_ms or _FILES_MS) // _QUIET)
        if len(self._quiet) > _QUIET_MAX:
            del self._quiet[next(iter(self._quiet))]

    async def _is_due(self, target: Target, rule: Rule) -> bool:
        """Whether nothing was written to a thread, and nothing of it came back, within the rule's time."""
        now_ms = self._environment.now_ms()
        return (
            rule.idle_ms > 0
            and self._stayed_away(target, rule, now_ms)
            and await in_turns(
                is_idle(
                    lambda: self._database.document(target).rows,
                    RetainThread(target.space, target.name, thread_older_than_ms=rule.idle_ms),
                    now_ms,
                ),
                self._environment.pause,
            )
        )

    def _stayed_away(self, target: Target, rule: Rule, now_ms: int) -> bool:
        """Whether nothing of a thread came back within the rule's time."""
        came = self._context.storage.raw.get(cold.warm_key(keys.object_rows(target.partition, *target)))
        return came is None or int.from_bytes(came, "big") + rule.idle_ms <= now_ms

    # ── requests ──────────────────────────────────────────────────────────────

    async def _view(self, request: ReadTiering, bookmark: Bookmark) -> TieringView:
        space, partition = check_name("space", request.space), _RECORDS.partition
        if not self._database.holds(partition, wanted := bookmark.vector(partition)):
            await self._replicas.wait_applied(partition, wanted)
        rule, shown = self.rules().get(space, Rule(space, "", 0)), self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        held = self.mover.away.get(space, Held(0, 0))
        return TieringView(
            space,
            rule.url,
            rule.idle_ms,
            rule.wall_ms,
            held.bytes,
            held.packs,
            self.last_ms,
            self.mover.moved_bytes,
            self._chunks.fetched,
            self._chunks.fetched_bytes,
            self._chunks.failed,
            self._troubled.get(space, ""),
            files=rule.files,
        )

    async def _try(self, request: TryTiering, bookmark: Bookmark) -> TieringView:
        """
        Raises:
            InvalidInput: it is no address, or one that is not allowed here.
            BackupUnreachable: an object cannot be written, read or deleted there.
            Unsupported: a library is not installed.
        """
        check_place(self._context.config, request.url, "chunks")
        if not request.url:
            raise InvalidInput("tiering needs an address. Nothing was written. `unset` brings all back.", field="url")
        store, probe = self._chunks.store(request.url), self._environment.entropy(_PROBE_BYTES)
        name = f"tiers/{self._context.incarnation.node.hex()}/probe-{probe.hex()}"
        async with tried(request.url, "recorded"):
            await store.put_new(name, probe)
            found = await store.get(name)
            await store.delete([name])
        if found != probe:
            raise BackupUnreachable(f"{request.url} does not give back what is put there. Nothing was recorded.")
        view = await self._view(ReadTiering(request.space), bookmark)
        if not request.idle_ms and not request.files:
            return view
        threads, size = await self._idle(Rule(request.space, request.url, request.idle_ms, files=request.files))
        return msgspec.structs.replace(view, idle_threads=threads, idle_bytes=size)

    async def _idle(self, rule: Rule) -> tuple[int, int]:
        """How many threads a rule would move, and the bytes of their chunks that are here."""
        count = size = 0
        after: str | None = None
        while count < _COUNTED_MAX:
            names = self._database.catalog.names(rule.space, Kind.THREAD, prefix="", after=after, limit=_PAGE)
            for after in names:
                target = Target(Kind.THREAD, rule.space, after)
                is_due = not self._partitions.load(target.partition).closed and await self._is_due(target, rule)
                if is_due or rule.files:
                    here = await in_turns(self.mover.bytes_here(target, files=not is_due), self._environment.pause)
                    count, size = count + bool(here), size + here
            if len(names) < _PAGE:
                break
            await self._environment.pause()
        return count, size

    async def _run_now(self, request: RunTiering, bookmark: Bookmark) -> TieringView:
        """
        Raises:
            BackupUnreachable: the bucket failed.
        """
        await self.look(check_name("space", request.space))
        if told := self.troubles.get(request.space):
            raise BackupUnreachable(f"{told} What was moved before stays there, and all else stays here.")
        return await self._view(ReadTiering(request.space), bookmark)
