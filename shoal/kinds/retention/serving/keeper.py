"""The task of a node that carries out the rules of retention.

Laws:
- Nothing goes unless this node knows the latest rules and heads: all owners are linked, count, and agree on the time, and
  this node holds all that they held of the rules' partition, and of the thread's, when it began with the thread.
- One node looks after a space: of all members the one with the greatest hash of both. If two think so, what both let go goes
  once; if it is away, nothing goes until it is back, as no byte would be freed.
- A clock that is not believed (`shoal.kinds.retention.state`) lets nothing go, and the node says so.
- In a store that was made of a backup a rule lets nothing go until it is set once more: what a person brought back stays.
- A restored directory writes that beside the rules as it is opened, before it meets another node. So nodes that are added know
  it.
- A look reads in steps, in the node's own turns, and rests between them (`shoal.node.turns.Resting`). Looks take at most one
  part in `SHARE` of the time, and use a third of theirs. So they stall nobody.
- It keeps nothing that it needs: a node that ends anywhere goes on from what is left.
- While nothing may go, what would is counted, so that people are told of it.
- What holds it up is noticed, and that it is over, within `RETENTION_HELD_S`, if this node knows of it by itself.
- A thread that cannot be read, or is under a lease, holds up no other.
- A rule that lets nothing go holds up no other, of its space or another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Protocol

from shoal.crdt.dot import VersionVector
from shoal.errors import ShoalError
from shoal.kinds.retention import state
from shoal.kinds.retention.state import Moment, Rule
from shoal.kinds.tiering import state as tiering
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import RESERVED, check_name
from shoal.node.catalog import is_empty
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.replicas import Replicas
from shoal.node.turns import Resting, in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    Durability,
    Member,
    PutEntry,
    ReadMap,
    ReadRules,
    RetainThread,
    RetentionRule,
    RetentionRules,
    ThreadRetained,
)
from shoal.raising import why
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.keys import Kind

RETENTION_LOOK_S = 60.0  # Between two looks.
RETENTION_COUNT_S = 600.0  # Between two counts of what would go of a space, while it may not.
RETENTION_HELD_S = 5.0  # Between two looks at whether something holds the rules up that this node knows of.
SHARE = 3

_RECORDS = Target(Kind.MAP, RESERVED, state.RULES)
_OF_TIERING = Target(Kind.MAP, RESERVED, tiering.RULES)
_SEEN = keys.meta("retention")  # The last time that was believed: wall_ms₈.
_SEEN_EACH_MS = 3600 * 1000  # It is written so often, if at all.
RESTORED = keys.meta("retention-since")
"""In a directory that was made of a backup: wall_ms₈. Rules that were set by then let nothing go, on all nodes."""
_UNASKED = "this node cannot ask all owners what they hold, so nothing is pruned"
_PAGE = 256
_PAGES_MAX = 16  # Of rules. If there are more, nothing goes.
_QUIET_MAX = 65_536  # Threads of which is known that nothing goes.
_QUIET_MS_MAX = 3600 * 1000  # For so long at most.
_QUIET = 20  # Or for one part in so many of the rule's ages.


class Call(Protocol):
    """Carries out a maintenance with the node's service."""

    def __call__(self, request: Any, bookmark: Bookmark, /, *, durability: Durability, stale: bool) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class _Quiet(NamedTuple):
    """Nothing goes of a thread until something is written in its partition, or the time has come."""

    written: int
    rule: Rule
    until_ms: int


class Keeper:
    """Carries out the rules. `call` serves a request of this node's own."""

    def __init__(self, context: NodeContext, database: Database, *, replicas: Replicas, call: Call) -> None:
        self._storage, self._commit = context.storage, context.commit
        self._partitions = context.partitions
        self._environment = context.environment
        self._requests = lambda: context.sharing.waiting
        self._upkeep = context.upkeep
        self._node = context.incarnation.node
        self._skew_ms = context.config.clock_skew_max_ms
        self._database = database
        self._replicas = replicas
        self._call = call
        self._vector: VersionVector | None = None  # At which the rules were read.
        self._rules: dict[str, list[Rule]] = {}  # By space.
        self._believed: Moment | None = None
        self._seen_ms = int.from_bytes(self._storage.get(_SEEN) or b"", "big")
        self._told_ms = 0  # Until when they wait, as all nodes know it.
        self._restored_ms = int.from_bytes(self._storage.get(RESTORED) or b"", "big")
        self._quiet: dict[Target, _Quiet] = {}
        self._looked: dict[str, int] = {}  # By space, when the last look at it ended.
        self._task: asyncio.Task[None] | None = None
        self._hindered = ""  # Why nothing goes in any space.
        self._counted: dict[str, tuple[list[Rule], float]] = {}  # By space: by which rules, and when by the monotonic clock.
        self._due: dict[str, int] = {}  # By space, as far as the last look has come.
        self.answers: Answers = {ReadRules: self._view}
        self.waits_for = ""
        """Why nothing goes now, for people; empty if nothing hinders it."""
        self.last_ms = 0
        """When the last look ended; 0: none has."""
        self.checkpoints = self.events = self.finished = self.threads = self.bytes = 0
        """Gone in this opening; of whole threads all that they held."""

    @property
    def figures(self) -> dict[str, Any]:
        """The fields of the status of the node that are about this."""
        names = ("checkpoints", "events", "threads", "bytes", "due", "last_ms", "waits_for")
        return {f"retention_{name}": getattr(self, name) for name in names}

    @property
    def due(self) -> int:
        """Checkpoints, events and threads that may go, and have not yet, as far as they were looked at."""
        return sum(self._due.values())

    def start(self) -> None:
        """Begin to look, on the running loop."""
        with suppress(ShoalError):  # Storage rejects writes. Each look tries again.
            self._tell_restored()
        self._task = self._upkeep.begin(self._run(), "retention")

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        rest_s = 0.0
        while self._commit.failed is None:
            await self._pause(max(min(RETENTION_HELD_S, RETENTION_LOOK_S), rest_s), max(RETENTION_LOOK_S, rest_s))
            began = self._environment.monotonic()
            with suppress(ShoalError):  # Storage rejects writes, or cannot be read. A later look tries again.
                await self.look()
            rest_s = (self._environment.monotonic() - began) * (SHARE - 1)

    async def _pause(self, least_s: float, most_s: float) -> None:
        """Wait for the next look: not for long, if the rules begin to be held up, or cease to be."""
        await asyncio.sleep(least_s)
        left_s = most_s - least_s
        while left_s > 0:
            with suppress(ShoalError):  # The rules cannot be read.
                if any(map(self._is_mine, self.rules())) and self._is_held() != bool(self._hindered):
                    return
            await asyncio.sleep(min(left_s, RETENTION_HELD_S))
            left_s -= RETENTION_HELD_S

    def _is_held(self) -> bool:
        """Whether this node knows, without asking the others, that nothing may go."""
        return bool(self._away() or (self._replicas.size > 1 and self._disagreement()) or self._doubt(self._now()))

    def _away(self) -> str:
        """That an owner is away, for people; empty if none is known to be."""
        away = [member.name for member in self._others() if member.state == "unreachable"] if self._replicas.size > 1 else ()
        return f"{_UNASKED}: {', '.join(away)} cannot be reached. Start what is away" if away else ""

    async def look(self) -> None:
        """Carry out all rules of the spaces that this node looks after, as far as that may be now.

        Raises:
            ShoalError: storage rejects writes, or cannot be read.
        """
        self._tell_restored()
        if not self.rules():
            self._due.clear()
            self._hindered = self.waits_for = ""
            return
        mine = sorted(space for space in self.rules() if self._is_mine(space))
        self._due = {space: due for space, due in self._due.items() if space in mine}
        self._counted = {space: counted for space, counted in self._counted.items() if space in mine}
        waits_for = await self._hindrance(_RECORDS.partition) if mine else ""
        for space in mine:
            waits_for = await self._space(space, waits_for)
        self._hindered = waits_for
        waits_for = waits_for or next((trouble for space in mine if (trouble := self._trouble(space))), "")
        if waits_for != self.waits_for and waits_for:
            log(events.RETENTION_WAITS, reason=waits_for)
        self.waits_for = waits_for
        self.last_ms = self._environment.now_ms()

    # ── what is known ─────────────────────────────────────────────────────────

    def rules(self) -> dict[str, list[Rule]]:
        """All rules by space, as they were applied here."""
        vector = self._partitions.load(_RECORDS.partition).vector
        if vector is not self._vector:
            self._rules = self._read()
            self._vector = vector
        return self._rules

    def restored_ms(self) -> int:
        """Until when the rules of a store that was made of a backup wait, those of tiering, too; 0: it is of none."""
        self.rules()
        return max(self._told_ms, self._restored_ms)

    def _tell_restored(self) -> None:
        """Have all nodes know until when the rules of this restored directory wait.

        Raises:
            ShoalError: storage rejects writes.
        """
        has_rules = self.rules() or self._database.catalog.holds(_OF_TIERING)
        if self._restored_ms and has_rules and self._told_ms < self._restored_ms:
            self._database.issue(
                PutEntry(RESERVED, state.RULES, state.RESTORED, state.packed_restored(self._restored_ms)), None
            )

    def _read(self) -> dict[str, list[Rule]]:
        found: dict[str, list[Rule]] = {}
        self._told_ms = 0
        after: str | None = None
        trouble = ""  # A rule that is not known may be the one of a longer prefix, which keeps more.
        for _ in range(_PAGES_MAX):
            page: Any = self._database.show(ReadMap(RESERVED, state.RULES, after=after, limit=_PAGE), _RECORDS)
            for entry in page.entries:
                after = entry.key
                if entry.key == state.RESTORED:
                    told_ms = state.read_restored([sibling.value for sibling in entry.siblings])
                    if told_ms is None:
                        trouble = "the record of a restore cannot be read"
                    else:
                        self._told_ms = told_ms
                    continue
                rule = state.read(entry.key, [(sibling.value, sibling.wall_ms) for sibling in entry.siblings])
                if rule is None:
                    trouble = f"another record of a rule cannot be read: {entry.key[:64]!r} of map {state.RULES!r}"
                elif rule.space != RESERVED:
                    found.setdefault(rule.space, []).append(rule)
            if not page.more:
                break
        else:
            trouble = f"there are more than {_PAGES_MAX * _PAGE} rules, so some are not known. Unset some"
        if trouble:
            return {space: [rule._replace(trouble=rule.trouble or trouble) for rule in rules] for space, rules in found.items()}
        until_ms = max(self._told_ms, self._restored_ms)
        return {space: [state.held_back(rule, until_ms) for rule in rules] for space, rules in found.items()}

    def _trouble(self, space: str) -> str:
        """Why a rule of a space lets nothing go, for people; empty: each does."""
        troubled = (rule for rule in self.rules().get(space, ()) if rule.trouble)
        return next((f"the rule of {rule.prefix!r}: {rule.trouble}" for rule in troubled), "")

    def _is_mine(self, space: str) -> bool:
        if self._replicas.size == 1:
            return True
        nodes = [bytes.fromhex(member.node) for member in self._replicas.view().members if member.part != "removed"]
        return max(nodes, key=lambda node: sha256(space.encode() + b"/" + node).digest()) == self._node

    def _others(self) -> list[Member]:
        """The members beside this one."""
        return [each for each in self._replicas.view().members if each.state != "self" and each.part != "removed"]

    async def _hindrance(self, partition: int) -> str:
        """Fetch all that the owners hold of a partition. Returns why nothing may go, for people; empty if it may."""
        if away := self._away():
            return away  # Nobody need wait for it.
        try:
            await self._replicas.catch_up(partition, "all")
        except ShoalError as error:
            return f"{_UNASKED}: {why(error)}"
        if self._replicas.size > 1 and (reason := self._disagreement()):
            return reason
        return self._disbelief()

    def _disagreement(self) -> str:
        """Why the owners' clocks do not say what is old, for people; empty if they do."""
        if self._replicas.clock_wrong:
            return self._replicas.clock_wrong
        if any(other.clock_ms is None or abs(other.clock_ms) > self._skew_ms for other in self._others()):
            return "the members' clocks are not known to agree, so nobody says what is old. Nothing is pruned"
        return ""

    def _now(self) -> Moment:
        return Moment(self._environment.now_ms(), self._environment.monotonic())

    def _doubt(self, now: Moment) -> str:
        """Why this node's clock is not believed, for people; empty if it is."""
        rule_ms = max((rule.wall_ms for rules in self.rules().values() for rule in rules), default=0)
        # A directory that has seen nothing yet goes by the others, who agree with it.
        seen_ms = self._seen_ms or (now.wall_ms if self._replicas.size > 1 else 0)
        return state.disbelief(now, self._believed, seen_ms, rule_ms)

    def _disbelief(self) -> str:
        """The same, and a clock that is believed is noted."""
        now = self._now()
        reason = self._doubt(now)
        if not reason:
            self._believed = now
            if now.wall_ms - self._seen_ms >= _SEEN_EACH_MS:
                self._seen_ms = now.wall_ms
                self._commit.write({_SEEN: now.wall_ms.to_bytes(8, "big")})
        return reason

    # ── one space ─────────────────────────────────────────────────────────────

    async def _space(self, space: str, waits_for: str) -> str:
        """Look through a space; if something is waited for, only to count. Returns what is, for people; empty if nothing."""
        rules, after = self.rules().get(space), None
        if rules is None:
            return waits_for  # The last one was unset while the others were asked.
        before, counted = self._counted.get(space, ([], 0.0)), self._environment.monotonic()
        if waits_for and before[0] == rules and self._due.get(space) and counted - before[1] < RETENTION_COUNT_S:
            return waits_for
        self._counted[space] = rules, counted
        self._due[space] = 0
        while names := self._database.catalog.names(space, Kind.THREAD, prefix="", after=after, limit=_PAGE):
            for after in names:
                rule = state.rule_of(rules, after)
                if rule is None or rule.trouble:
                    continue
                with suppress(ShoalError):  # This thread is damaged, or under a lease.
                    waits_for = await self._thread(Target(Kind.THREAD, space, after), rule, waits_for)
                if self.rules().get(space) != rules:
                    return waits_for  # The next look goes by the new ones.
            await self._environment.pause()
        self._looked[space] = self._environment.now_ms()
        return waits_for

    async def _thread(self, target: Target, rule: Rule, waits_for: str) -> str:
        """Let go what goes of a thread, if nothing is waited for. Returns why it may not, for people; empty if it may."""
        now_ms, quiet = self._environment.now_ms(), self._quiet.get(target)
        written = self._partitions.written(target.partition)
        if quiet is not None and (quiet.written, quiet.rule) == (written, rule) and now_ms < quiet.until_ms:
            return waits_for
        request = _request(target, rule)
        due = await in_turns(self._database.retains(request), Resting(self._environment, self._requests).rest)
        if not due:
            self._keep_quiet(target, _Quiet(written, rule, now_ms + _quiet_ms(rule)))
            return waits_for
        if reason := waits_for or await self._hindrance(target.partition):
            self._due[target.space] += due
            return reason
        if rule not in self.rules().get(target.space, ()):
            return ""
        report = await self._call(request, Bookmark(), durability="local", stale=True)
        assert isinstance(report, ThreadRetained)
        self.threads += report.deletes
        self.checkpoints += report.checkpoints
        self.events += report.events
        self.finished += report.finished
        self.bytes += report.bytes
        return ""

    def _keep_quiet(self, target: Target, quiet: _Quiet) -> None:
        self._quiet.pop(target, None)
        self._quiet[target] = quiet
        if len(self._quiet) > _QUIET_MAX:
            del self._quiet[next(iter(self._quiet))]

    # ── for people ────────────────────────────────────────────────────────────

    async def _view(self, request: ReadRules, bookmark: Bookmark) -> RetentionRules:
        space, partition = check_name("space", request.space), _RECORDS.partition
        if not self._database.holds(partition, wanted := bookmark.vector(partition)):
            await self._replicas.wait_applied(partition, wanted)
        rules, shown = sorted(self.rules().get(space, [])), self._database.vector_of(partition)
        await self._database.durable_of(partition)
        bookmark.note(partition, shown)
        is_mine = self._is_mine(space)
        waits_for = (self._hindered or self._trouble(space)) if rules and is_mine else ""
        if rules and self._replicas.size == 1:
            waits_for = waits_for or self._disbelief()
        return RetentionRules(
            space,
            [RetentionRule(**{name: getattr(rule, name) for name in RetentionRule.__struct_fields__}) for rule in rules],
            is_mine,
            self._looked.get(space, 0),
            self.checkpoints,
            self.events,
            self.threads,
            self.bytes,
            self._due.get(space, 0),
            waits_for,
            is_empty(self._storage, space),
            self.finished,
        )


def _request(target: Target, rule: Rule) -> RetainThread:
    ages = rule.older_than_ms, rule.threads_older_than_ms, rule.events_older_than_ms
    finished_ms = rule.finished_older_than_ms
    return RetainThread(
        target.space, target.name, rule.keep_last, *ages, rule.keep_labelled, finished_older_than_ms=finished_ms
    )


def _quiet_ms(rule: Rule) -> int:
    """For how long nothing that age alone makes due need be looked for: what is due stays for so long at most."""
    ages: Sequence[int] = [
        age
        for age in (rule.older_than_ms, rule.threads_older_than_ms, rule.events_older_than_ms, rule.finished_older_than_ms)
        if age is not None
    ]
    return min([_QUIET_MS_MAX, *(age // _QUIET for age in ages)])
