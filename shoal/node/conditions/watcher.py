"""Looks at a node every few seconds, notes since when conditions stand, and logs each once when it begins and when it is over.

Laws:
- A condition is noticed, and is gone, within `Environment.look_s`: everything that tells of it reads what was found here.
- The log has one line when a condition has stood for `TOLD_AFTER_S`, and one when it is over.
- What happened between two looks stands for `RECENT_S` after it, so that no look misses it.
- A look that fails ends nothing: it is logged, and the next one is made.
- What is remembered is bounded: one entry for each finding of the last look.

The table of conditions, and what an observation says of each.

Laws:
- A name is once in the table, and stays: alerts, logs and boards are keyed by it.
- Of an observation each condition is either known, true or not, or named as unknown with the reason.
- At most `SHOWN_MAX` findings of one condition are told; the last one says how many more there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from shoal import __version__
from shoal.logs import events
from shoal.logs.lines import log, tell_left_out
from shoal.node.conditions import of_cluster, of_node
from shoal.node.conditions.of_node import Condition, Finding, Observation, Signals, Unknown, Use, Volume
from shoal.node.context import NodeContext
from shoal.node.handler import Answers
from shoal.node.incarnation import had_fellows
from shoal.node.replicas import Cluster
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import ConditionsView, NodeStatus, ReadConditions, Severity, StandingCondition, Status
from shoal.records import NamedTuple

RECENT_S = 10.0  # What happened stands so long.
TOLD_AFTER_S = 4.0  # The log tells of what has stood so long: at the second look.
MEASURE_S = 1.0  # So long a look waits to be told how much room the disk has. A disk that hangs answers nothing.

_STANDS = {"page": events.CONDITION_PAGE, "ticket": events.CONDITION_TICKET, "note": events.CONDITION_NOTE}


class _Grown:
    """Notices which counts have grown lately. Their names are bounded by who counts."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._grown: dict[str, tuple[float, int]] = {}  # When, and by how much.

    def noted(self, counts: Mapping[str, int], now: float) -> dict[str, int]:
        """By how much each count grew in the last seconds."""
        for name, count in counts.items():
            by = count - self._before.get(name, 0)
            if by > 0:
                self._grown[name] = now, by
        self._before = dict(counts)
        self._grown = {name: (at, by) for name, (at, by) in self._grown.items() if now - at < RECENT_S}
        return {name: by for name, (_, by) in self._grown.items()}


class Watcher:
    """Watches one node. `status` returns its status; `uses` how much of each bound is used.

    `full_at_ms` forecasts when a disk of which so many bytes are free will be full; `unredacted` says of which spaces redaction
    fails (`shoal.kinds.redaction.serving.redactor.Redactor.failing`).
    """

    def __init__(
        self,
        context: NodeContext,
        cluster: Cluster,
        *,
        status: Callable[[], NodeStatus],
        uses: Callable[[], Mapping[str, Use]],
        full_at_ms: Callable[[int], int | None],
        unredacted: Callable[[], Mapping[str, str]],
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._status, self._uses, self._full_at_ms, self._unredacted = status, uses, full_at_ms, unredacted
        self._environment = context.environment
        self.signals = Signals()
        """As they were sampled last."""
        self._slow, self._expired = _Grown(), _Grown()
        self._since: dict[tuple[str, str], StandingCondition] = {}  # By name and what it is about.
        self._begun_at: dict[tuple[str, str], float] = {}  # By the monotonic clock.
        self._logged: dict[tuple[str, str], StandingCondition] = {}
        self._unknown: dict[str, str] = dict.fromkeys(CONDITIONS, "the node has just started")
        self._is_sampled = False
        self._is_apart = not context.config.join and had_fellows(context.storage)
        self._measuring: asyncio.Future[tuple[int, int] | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.answers: Answers = {ReadConditions: self._read, Status: self._show}
        self.begun = dict.fromkeys(CONDITIONS, 0)
        """How often each condition began, since the node started."""

    def start(self) -> None:
        """Begin to look, on the running loop."""
        self._task = self._context.upkeep.begin(self._run(), "watch over conditions")

    async def stop(self) -> None:
        """End. Stopping twice is allowed."""
        for task in (self._task, self._measuring):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def standing(self) -> list[StandingCondition]:
        """The conditions that stood when it last looked, the worst first."""
        return list(self._since.values())

    async def view(self) -> ConditionsView:
        """Look, and tell."""
        if self._is_sampled:
            self._look()
        else:
            await self.sample()
        looked = [name for name in CONDITIONS if name not in self._unknown]
        identity = self._context.incarnation.node.hex()
        return ConditionsView(identity, self._context.config.advertise, self.standing, looked, self._unknown, self.begun)

    async def _read(self, _request: ReadConditions, _bookmark: Bookmark) -> ConditionsView:
        return await self.view()

    async def _show(self, _request: Status, _bookmark: Bookmark) -> NodeStatus:
        if not self._is_sampled:
            await self.sample()
        return self._status()

    async def sample(self) -> None:
        """Note what the status does not tell, and look."""
        measuring = self._measuring
        if measuring is None or measuring.done():
            measuring = self._measuring = asyncio.ensure_future(self._environment.volume())
        await asyncio.wait({measuring}, timeout=MEASURE_S)
        volume = measuring.result() if measuring.done() else None  # A disk that hangs: that is not known, and the rest is.
        context, now = self._context, self._environment.monotonic()
        self.signals = Signals(
            volume=None if volume is None else Volume(*volume),
            full_ms=None if volume is None else self._full_at_ms(volume[0]),
            sync_s=context.commit.take_slowest_s(),
            lag_s=context.commit.lag_s,
            waiting=context.sharing.waits,
            slow=self._slow.noted(context.feed.slow, now),
            expired=self._expired.noted(self._status().tokens_refused, now).get("expired", 0),
            uses=self._uses(),
        )
        self._is_sampled = True
        self._look()

    async def _run(self) -> None:
        while True:
            try:
                tell_left_out()
                await self.sample()
            except Exception as bug:
                log(events.BUG, where="the look of a node at itself", bug=bug)
            await asyncio.sleep(self._environment.look_s)

    def observe(self) -> Observation:
        """The node at this moment, with the last sample."""
        incarnation, replicas = self._context.incarnation, self._cluster.quorum
        return Observation(
            now_ms=self._environment.now_ms(),
            version=__version__,
            address=self._context.config.advertise,
            status=self._status(),
            cluster=replicas.view(),
            members=self._cluster.memberships.members(),
            failed=self._context.commit.failed or "",
            outside=bool(incarnation.outside),
            apart=self._is_apart,
            second=self._cluster.memberships.second,
            clock_wrong=replicas.clock_wrong,
            signals=self.signals,
            unredacted=self._unredacted(),
            ended=self._context.upkeep.ended,
        )

    def _look(self) -> None:
        seen = self.observe()
        found = look(seen)
        before = self._since
        self._unknown = found.unknown
        self._since = {}
        for each in found.standing:
            place = each.name, each.about
            if place in self._since:
                continue  # Several findings about the same: one tells.
            known = before.get(place)
            self._since[place] = msgspec.structs.replace(each, since_ms=seen.now_ms if known is None else known.since_ms)
        for name in {place[0] for place in self._since.keys() - before.keys()}:
            self.begun[name] += 1
        now = self._environment.monotonic()
        self._begun_at = {place: self._begun_at.get(place, now) for place in self._since}
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Log what has stood for a whole interval, so that what passes while a node starts is no line; and what is over."""
        for place, each in self._since.items():
            if place not in self._logged and now - self._begun_at[place] >= TOLD_AFTER_S:
                self._logged[place] = each
                log(
                    _STANDS[each.severity],
                    condition=each.name,
                    severity=each.severity,
                    about=each.about,
                    says=each.says.rstrip("."),
                    means=each.means,
                    mends=each.mends,
                )
        for place in [place for place in self._logged if place not in self._since]:
            each = self._logged.pop(place)
            log(events.CONDITION_GONE, condition=each.name, about=each.about)


SHOWN_MAX = 8
APART = "this directory is of a member of a cluster, and was opened alone: ask the members with --url"

CONDITIONS: Mapping[str, Condition] = {each.name: each for each in (*of_cluster.CONDITIONS, *of_node.CONDITIONS)}
"""By their names, in the order in which they are told of."""

_ORDER: Mapping[Severity, int] = {"page": 0, "ticket": 1, "note": 2}


class Look(NamedTuple):
    """The conditions that an observation shows."""

    standing: tuple[StandingCondition, ...]  # The worst first; since when is not filled in.
    unknown: dict[str, str]  # Conditions of which it is not known whether they are true, with the reason.

    @property
    def looked(self) -> list[str]:
        """The names of the conditions of which it is known."""
        return [name for name in CONDITIONS if name not in self.unknown]


def look(seen: Observation) -> Look:
    """Look for each condition of the table."""
    standing: list[StandingCondition] = []
    unknown: dict[str, str] = {}
    for condition in CONDITIONS.values():
        if seen.apart and condition in of_cluster.CONDITIONS:
            unknown[condition.name] = APART
            continue
        found = list(condition.look(seen))
        findings = [each for each in found if isinstance(each, Finding)]
        whys = [each.why for each in found if isinstance(each, Unknown)]
        if whys and not findings:  # One that is true is known, whatever else is not.
            unknown[condition.name] = "; ".join(whys[:SHOWN_MAX])
        more = max(0, len(findings) - SHOWN_MAX)
        standing += [_standing(condition, finding, more=more) for finding in findings[:SHOWN_MAX]]
    standing.sort(key=lambda each: _ORDER[each.severity])
    return Look(tuple(standing), unknown)


def _standing(condition: Condition, finding: Finding, *, more: int) -> StandingCondition:
    return StandingCondition(
        condition.name,
        condition.severity,
        f"{finding.says} (and {more:,} more)" if more else finding.says,
        condition.means,
        condition.mends.replace("{about}", finding.about or "NAME"),
        condition.page,
        0,
        finding.about,
    )
