"""Draw composites: faults that follow each other in an order that means something, and the acts that make them matter.

Laws:
- A composite is drawn as single events, with times and nodes: each can be left out.
- Disks are lost only on the nodes that may lose theirs, a minority of all. So whatever
  `Losses` does not excuse is owed after any composite; each says what that is.
- Acts go through the agents that prefer the nodes that a composite is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from shoal.crdt.clock import END_MS
from shoal.protocol.requests import Durability
from shoal.testing.environment import START_MS
from shoal.testing.simulation.parts.all import KINDS
from shoal.testing.simulation.plan import (
    Act,
    ActKind,
    ClockJump,
    Clone,
    CorruptBlock,
    Crash,
    Cut,
    Fault,
    FullDisk,
    Misroute,
    Pause,
    Relist,
    Restore,
    Stop,
    Weather,
    Wipe,
)

_NATIVE: tuple[ActKind, ...] = ("save", "load", "append", "add", "count", "assign", "edit", "read-document", "read-journal")
_FAMILIES: dict[str, tuple[ActKind, ...]] = {"": _NATIVE, **KINDS}
"""Kinds of acts that have to do with each other; the first of them makes something that the others find."""

_ERASERS: dict[str, tuple[ActKind, ...]] = {
    "erasing": ("prune", "delete"),
    "papers": ("delete-paper", "compact-paper"),
    "pages": ("compact-page",),
    "items": ("delete-item",),
    "messages": ("take-message", "consume"),
    "sets": ("remove-from-set",),
    "maps": ("remove-entry", "alter-entry"),
    "lines": ("move-branch",),
    "budgets": ("spend", "release-rights"),
}

YEAR_MS = 365 * 24 * 3600 * 1000
NEVER_S = 2 * END_MS // 1000
"""As a window: longer than any clock lasts."""


class Composed(NamedTuple):
    """What a composite adds to a plan, and the second in which it is over."""

    faults: list[Fault]
    acts: list[Act]
    settings: dict[str, int | float | str]
    ends_at: float


class Stage(NamedTuple):
    """What a composite is drawn from. `losers` may lose their disks; there may be none."""

    random: Random
    nodes: list[str]
    losers: list[str]
    agents: int  # At least one for each node.
    at: float  # Where it begins.

    @property
    def keepers(self) -> list[str]:
        """The nodes that keep their disks, in any order."""
        return self.random.sample(kept := [name for name in self.nodes if name not in self.losers], len(kept))

    def between(self, least: float, most: float) -> float:
        return round(self.random.uniform(least, most), 3)

    def agent(self, nodes: Sequence[str]) -> int:
        """One that prefers one of these nodes."""
        node = self.nodes.index(self.random.choice(list(nodes)))
        return self.random.choice(range(node, self.agents, len(self.nodes)))

    def families(self, wanted: Sequence[str]) -> list[str]:
        """One or two of these."""
        return self.random.sample(list(wanted), self.random.choice((1, 1, 2)))

    def acts(
        self,
        kinds: Sequence[ActKind],
        nodes: Sequence[str],
        within: tuple[float, float],
        *,
        least: int = 1,
        most: int,
        durabilities: Sequence[Durability] = ("local", "quorum"),
        as_of: float | None = None,
    ) -> Iterator[Act]:
        """Some acts of these kinds at these nodes; the first kind is as frequent as all others."""
        for _ in range(self.random.randint(least, most)):
            yield Act(
                at=self.between(*within),
                agent=self.agent(nodes),
                kind=kinds[0] if self.random.random() < 0.5 else self.random.choice(list(kinds)),
                durability=self.random.choice(list(durabilities)),
                repeat=self.random.random() < 0.1,
                as_of=as_of,
            )

    def loss(self, node: str, at: float, copied_at: float) -> Fault:
        """A disk is lost, or set back to what it was at `copied_at`."""
        down_s = self.between(0.05, 0.6)
        match self.random.randrange(5):
            case 0 | 1:
                return Wipe(at=at, node=node, down_s=down_s)
            case 2 | 3:
                return Restore(at=at, node=node, copied_at=copied_at, down_s=down_s)
            case _:
                return CorruptBlock(at=at, node=node, table=self.random.choice("OLVKD"), down_s=down_s)


Composite = Callable[[Stage], Composed]


def compose(random: Random, nodes: Sequence[str], losers: Sequence[str], agents: int, at: tuple[float, float]) -> Composed:
    """One composite that begins `at` some time between these; nothing for a node without peers."""
    if len(nodes) < 2:
        return Composed([], [], {}, 0.0)
    losers = losers or random.sample(list(nodes), (len(nodes) - 1) // 2)
    composite = random.choice(COMPOSITES if losers else _OF_TWO)
    composed = composite(Stage(random, list(nodes), list(losers), agents, round(random.uniform(*at), 3)))
    ends_at = max(event.at for event in (*composed.faults, *composed.acts))
    return composed._replace(ends_at=max(ends_at, composed.ends_at))


# ── disks that are lost ───────────────────────────────────────────────────────


def _forgotten(stage: Stage) -> Composed:
    """A quorum holds a write; one part of it loses its disks, the other is cut off, and the rest are asked for it.

    Owed: whatever the quorum acknowledged, once all is healed; and that nothing was begun twice.
    """
    needed = len(stage.nodes) // 2 + 1
    keepers = stage.keepers
    holders = keepers[: max(1, needed - len(stage.losers))]
    outside = keepers[len(holders) :]
    lost = stage.losers[: needed - len(holders)]
    written_at = stage.at + stage.between(0.2, 0.6)
    lost_at = written_at + stage.between(0.8, 2.5)
    heard_at = lost_at + stage.between(0.1, 1.0)
    ends_at = heard_at + stage.between(2.0, 6.0)
    faults: list[Fault] = [
        Cut(at=stage.at, sources=outside, targets=holders + stage.losers, for_s=round(heard_at - stage.at, 3)),
        Cut(
            at=round(lost_at - 0.05, 3),
            sources=holders,
            targets=outside + stage.losers,
            for_s=round(ends_at - lost_at, 3),
            both=stage.random.random() < 0.8,
        ),
        *(stage.loss(name, round(lost_at, 3), stage.between(0.0, stage.at)) for name in lost),
    ]
    acts: list[Act] = []
    wanted = stage.random.choices(("steps", "budgets", ""), weights=(5, 2, 1))
    for family in dict.fromkeys([*wanted, *stage.families(list(_FAMILIES))]):
        kinds, as_of = _FAMILIES[family], round(written_at, 3)
        for nodes, within in ((holders, (written_at, lost_at - 0.1)), (outside + lost, (heard_at + 0.2, ends_at))):
            acts += stage.acts(kinds, nodes, within, most=4, durabilities=("quorum", "quorum", "local"), as_of=as_of)
    return Composed(faults, acts, {}, ends_at)


def _stale_copy(stage: Stage) -> Composed:
    """A copy of a disk is put back after the others have erased, and swept, what it holds; its node goes on from there.

    Owed: all but what the node of the copy alone had acknowledged since.
    """
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    copied_at = stage.at + stage.between(0.5, 2.0)
    erased_at = copied_at + stage.between(0.3, 2.0)
    restored_at = erased_at + stage.between(0.5, 6.0)
    faults: list[Fault] = [
        Restore(at=round(restored_at, 3), node=node, copied_at=round(copied_at, 3), down_s=stage.between(0.05, 0.5))
    ]
    if stage.random.random() < 0.8:
        cut_at, both = round(restored_at - stage.between(0.0, 0.1), 3), stage.random.random() < 0.7
        faults.append(Cut(at=cut_at, sources=[node], targets=others, for_s=stage.between(1.0, 6.0), both=both))
    acts: list[Act] = []
    for family in dict.fromkeys([stage.random.choice(("erasing", "erasing", *_ERASERS)), "erasing"]):
        kinds = _FAMILIES[family]
        # The copy's own agents have seen none of it, or they would wait for what it lacks.
        acts += stage.acts(kinds[:1], others, (stage.at, copied_at), most=3)
        acts += stage.acts(kinds[:1], others, (copied_at, erased_at), least=2, most=5)
        acts += stage.acts(_ERASERS[family], others, (erased_at, erased_at + 0.5), most=2)
        acts += stage.acts(kinds, [node], (restored_at + 0.1, restored_at + 3.0), least=2, most=5, durabilities=("local",))
        acts += stage.acts(kinds, others, (restored_at + 0.5, restored_at + 4.0), most=2)
    return Composed(faults, acts, {}, 0.0)


def _one_by_one(stage: Stage) -> Composed:
    """The nodes that may lose their disks do so one after the other, while the others are down or cut off in turn.

    Owed: whatever a quorum acknowledged, once all is healed.
    """
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for family in stage.families(list(_FAMILIES)):
        acts += stage.acts(_FAMILIES[family], stage.nodes, (at, at + 8.0), most=12)
    for loser in stage.random.sample(stage.losers, len(stage.losers)):
        away = stage.random.choice([name for name in stage.nodes if name != loser])
        others = [name for name in stage.nodes if name != away]
        for_s = stage.between(1.0, 4.0)
        faults.append(
            stage.random.choice(
                (
                    Cut(at=at, sources=[away], targets=others, for_s=for_s, both=stage.random.random() < 0.5),
                    Stop(at=at, node=away, down_s=for_s),
                    Crash(at=at, node=away, down_s=for_s),
                    Pause(at=at, node=away, for_s=for_s),
                )
            )
        )
        faults.append(stage.loss(loser, round(at + for_s * stage.random.random(), 3), stage.between(0.0, at)))
        at = round(at + for_s + stage.between(0.0, 2.0), 3)
    return Composed(faults, acts, {}, at)


# ── nodes that are away ───────────────────────────────────────────────────────


def _one_way(stage: Stage) -> Composed:
    """For long a node is not heard by some others, though it hears them, or the other way round; meanwhile disks may be lost.

    Owed: everything but what is lost with those disks.
    """
    node = stage.random.choice(stage.nodes)
    others = stage.random.sample(rest := [name for name in stage.nodes if name != node], stage.random.randint(1, len(rest)))
    for_s = stage.between(5.0, 15.0)
    ends = [[node], others]
    if stage.random.random() < 0.5:
        ends.reverse()
    faults: list[Fault] = [Cut(at=stage.at, sources=ends[0], targets=ends[1], for_s=for_s, both=False)]
    if stage.losers and stage.random.random() < 0.5:
        faults.append(
            stage.loss(
                stage.random.choice(stage.losers), stage.between(stage.at, stage.at + for_s), stage.between(0.0, stage.at)
            )
        )
    acts = [
        act
        for family in stage.families(list(_FAMILIES))
        for act in stage.acts(_FAMILIES[family], stage.nodes, (stage.at, stage.at + for_s + 1.0), most=12)
    ]
    return Composed(faults, acts, {}, stage.at + for_s)


KEY_WINDOW_S = 20
"""More than a client waits for one answer: less is not promised."""

_WINDOWS: dict[str, tuple[int | float, ...]] = {
    "early_s": (0.5, 2.0),
    "quarantine_s": (0.5, 2.0),
    "item_expiry_grace_s": (0.5, 3.0),
    "watch_replay_operations_max": (3, 20),
    "document_history_s": (0.2, 3.0),
    "session_wait_s": (0.2,),
    "key_window_s": (KEY_WINDOW_S,),
    "sync_interval_s": (0.2, 2.0),
    "objects_known_max": (1, 4),
}


def _outage(stage: Stage) -> Composed:
    """A node is away for longer than what is kept in mind for it, and comes back; windows are scaled to seconds.

    Owed: everything. A request whose key is too old is refused.
    """
    node = stage.random.choice(stage.nodes)
    others = [name for name in stage.nodes if name != node]
    for_s = stage.between(6.0, 25.0)
    away: tuple[Fault, ...] = (
        Cut(at=stage.at, sources=[node], targets=others, for_s=for_s),
        Cut(at=stage.at, sources=[node], targets=others, for_s=for_s),
        Crash(at=stage.at, node=node, down_s=for_s),
        Stop(at=stage.at, node=node, down_s=for_s),
        Pause(at=stage.at, node=node, for_s=for_s),
    )
    back_at = stage.at + for_s
    acts: list[Act] = []
    for family in stage.families([*_FAMILIES, *_ERASERS]):
        kinds = _FAMILIES[family]
        acts += stage.acts(kinds[:1], stage.nodes, (stage.at - 0.8, stage.at), most=3)
        acts += stage.acts(_ERASERS.get(family, kinds), others, (stage.at, back_at), most=6)
        acts += stage.acts(kinds, stage.nodes, (stage.at, back_at), most=8)
        acts += stage.acts(kinds, stage.nodes, (back_at, back_at + 2.0), most=5)
    settings: dict[str, int | float | str] = {
        name: stage.random.choice(values) for name, values in _WINDOWS.items() if stage.random.random() < 0.5
    }
    return Composed([stage.random.choice(away)], acts, settings, back_at)


def _black_hole(stage: Stage) -> Composed:
    """What a node sends to another arrives if it is small, and is lost if it is large: the other hears what it does not get.

    Owed: everything; and that the other fetches it from a third node in time (`shoal.testing.simulation.probing`).
    """
    source, target, *rest = stage.random.sample(stage.nodes, len(stage.nodes))
    for_s = stage.between(10.0, 18.0)
    faults: list[Fault] = [
        Weather(
            at=stage.at, for_s=for_s, loss=1.0, sources=[source], targets=[target], over_bytes=stage.random.choice((200, 400))
        )
    ]
    acts: list[Act] = []
    for family in stage.families(["erasing", "lines", "papers", "maps"]):
        acts += stage.acts(_FAMILIES[family], [source, *rest], (stage.at, stage.at + for_s - 6.0), least=8, most=25)
    return Composed(faults, acts, {"quorum_timeout_s": 1.0, "sync_interval_s": 0.3}, stage.at + for_s)


# ── who is who ────────────────────────────────────────────────────────────────


def _cloned(stage: Stage) -> Composed:
    """A copy of a node's disk runs beside it, under its name, another member's or an unlisted one; clients may reach it.

    Owed: everything. The copy issues nothing, and what it says counts for nobody.
    """
    node = stage.random.choice(stage.nodes)
    others = [name for name in stage.nodes if name != node]
    cloned_at = stage.at + stage.between(1.0, 3.0)
    for_s = stage.between(3.0, 8.0)
    name = stage.random.choice((node, stage.random.choice(others), "n9"))
    serves = stage.random.random() < 0.6
    faults: list[Fault] = [Clone(at=round(cloned_at, 3), node=node, name=name, for_s=for_s, serves=serves)]
    if stage.random.random() < 0.5:
        at, cut_s = stage.between(cloned_at - 0.5, cloned_at + for_s), stage.between(1.0, 5.0)
        faults.append(Cut(at=at, sources=[stage.random.choice(others)], targets=stage.nodes, for_s=cut_s))
    acts: list[Act] = []
    for family in dict.fromkeys([stage.random.choice(("budgets", "steps", "erasing")), *stage.families(list(_FAMILIES))]):
        kinds = _FAMILIES[family]
        acts += stage.acts(kinds, stage.nodes, (stage.at, cloned_at), most=6)
        acts += stage.acts(kinds, [node], (cloned_at + 0.1, cloned_at + for_s), most=6)
        acts += stage.acts(kinds, stage.nodes, (cloned_at, cloned_at + for_s + 1.0), most=10)
    return Composed(faults, acts, {}, cloned_at + for_s)


def _misrouted(stage: Stage) -> Composed:
    """For a while addresses lead a node back to itself, or to another one, and other nodes are away.

    Owed: everything; fewer nodes than were asked for acknowledge nothing.
    """
    node = stage.random.choice(stage.nodes)
    others = stage.random.sample(rest := [name for name in stage.nodes if name != node], stage.random.randint(1, len(rest)))
    for_s = stage.between(2.0, 8.0)
    faults: list[Fault] = [
        Misroute(
            at=stage.at,
            node=node,
            name=name,
            to=node if stage.random.random() < 0.7 else stage.random.choice(rest),
            for_s=for_s,
        )
        for name in others
    ]
    if stage.random.random() < 0.5:
        at, cut_s = stage.between(stage.at, stage.at + for_s), stage.between(1.0, 6.0)
        faults.append(Cut(at=at, sources=[stage.random.choice(rest)], targets=stage.nodes, for_s=cut_s))
    acts = [
        act
        for family in stage.families(list(_FAMILIES))
        for act in stage.acts(
            _FAMILIES[family], stage.nodes, (stage.at, stage.at + for_s + 4.0), least=4, most=15, durabilities=("quorum", "all")
        )
    ]
    return Composed(faults, acts, {}, stage.at + for_s)


def _relisted(stage: Stage) -> Composed:
    """A member goes, the others are restarted one by one with a shorter list, and later with the old one; then it comes back.

    Owed: everything. `all` is then all of the shorter list.
    """
    gone, *rest = stage.random.sample(stage.nodes, len(stage.nodes))
    members = [name for name in stage.nodes if name != gone]
    faults: list[Fault] = []
    at = stage.at
    for listed in (members, stage.nodes):
        for name in stage.random.sample(rest, len(rest)):
            at = round(at + stage.between(0.3, 2.0), 3)
            faults.append(Relist(at=at, node=name, members=listed, down_s=stage.between(0.05, 0.4)))
        at = round(at + stage.between(0.0, 3.0), 3)
    back_at = stage.between(stage.at + 2.0, at + 1.0)
    faults.append(Crash(at=stage.at, node=gone, down_s=round(back_at - stage.at, 3)))
    acts = [
        act
        for family in stage.families(list(_FAMILIES))
        for act in stage.acts(_FAMILIES[family], stage.nodes, (stage.at, at + 2.0), least=5, most=20)
    ]
    return Composed(faults, acts, {}, at)


def _failed_sync(stage: Stage) -> Composed:
    """A sync of a node fails while its agents write; they go on reading there until it is restarted.

    Owed: everything but writes of unknown outcome; and nobody is shown what that sync was to cover.
    """
    node = stage.random.choice(stage.nodes)
    down_s = stage.between(0.5, 4.0)
    faults: list[Fault] = [FullDisk(at=stage.at, node=node, operation="sync", down_s=down_s)]
    acts: list[Act] = []
    for family in dict.fromkeys([stage.random.choice(("watching", *_FAMILIES)), *stage.families(list(_FAMILIES))]):
        kinds = _FAMILIES[family]
        acts += stage.acts(kinds, [node], (stage.at - 0.8, stage.at), most=4)
        acts += stage.acts(kinds[:1], [node], (stage.at, stage.at + 0.1), most=3)
        acts += stage.acts(kinds[1:] or kinds, [node], (stage.at + 0.05, stage.at + down_s), least=2, most=6)
    return Composed(faults, acts, {}, round(stage.at + down_s, 3))


def _met_late(stage: Stage) -> Composed:
    """Some nodes are cut off from each other by pairs, in turn, while all do the same with the same things.

    Owed: everything; and what arrives in another order on each node is the same in the end.
    """
    acts: list[Act] = []
    faults: list[Fault] = []
    at = stage.at
    family = stage.random.choice(list(_FAMILIES))
    apart = stage.random.sample(stage.nodes, min(3, len(stage.nodes)))
    for _ in range(stage.random.choice((2, 3))):
        for_s = stage.between(0.6, 2.5)
        late = apart[-1]
        others = [name for name in stage.nodes if name != late]
        faults.append(Cut(at=at, sources=[late], targets=others, for_s=for_s))
        if stage.random.random() < 0.7 and len(apart) > 2:
            faults.append(Cut(at=round(at + for_s / 2, 3), sources=[apart[0]], targets=[apart[1]], for_s=round(for_s / 2, 3)))
        for node in apart:
            acts += stage.acts(_FAMILIES[family], [node], (at + 0.05, at + for_s), least=2, most=5)
        at = round(at + for_s * stage.random.random(), 3)
        stage.random.shuffle(apart)
    return Composed(faults, acts, {}, at)


# ── clocks ────────────────────────────────────────────────────────────────────


def _years_off(stage: Stage) -> Composed:
    """A node's clock is years off, or near the end of all clocks, for a while; the node may crash before or after.

    Owed: everything. With the usual window of keys such a node refuses what clients send it.
    """
    node = stage.random.choice(stage.nodes)
    to_the_end_ms = END_MS - START_MS - int(stage.at * 1000)
    by_ms = stage.random.choice(
        (
            stage.random.randint(1, 300) * YEAR_MS,
            -min(stage.random.randint(1, 60) * YEAR_MS, START_MS),
            to_the_end_ms - stage.random.randint(-5000, 5000),
            to_the_end_ms + stage.random.randint(0, 100) * YEAR_MS,
        )
    )
    back_at = round(stage.at + stage.between(1.0, 6.0), 3)
    faults: list[Fault] = [ClockJump(at=stage.at, node=node, by_ms=by_ms)]
    if stage.random.random() < 0.7:
        faults.append(ClockJump(at=back_at, node=node, by_ms=-by_ms))
    crashes = (stage.between(stage.at, back_at), stage.between(back_at, back_at + 3.0))
    faults += [
        Crash(at=at, node=stage.random.choice(stage.nodes), down_s=stage.between(0.1, 1.0))
        for at in crashes
        if stage.random.random() < 0.3
    ]
    acts: list[Act] = []
    for family in stage.families(list(_FAMILIES)):
        kinds = _FAMILIES[family]
        acts += stage.acts(kinds, stage.nodes, (stage.at - 0.5, stage.at), most=3)
        acts += stage.acts(kinds, [node], (stage.at, back_at), most=6)
        acts += stage.acts(kinds, stage.nodes, (stage.at + 0.2, back_at + 4.0), most=10)
    return Composed(faults, acts, {"key_window_s": NEVER_S} if stage.random.random() < 0.8 else {}, back_at)


_OF_TWO: tuple[Composite, ...] = (_one_way, _outage, _years_off, _failed_sync, _met_late, _cloned, _misrouted)
"""Those that two nodes can have, of which none may lose its disk."""

COMPOSITES: tuple[Composite, ...] = (
    *(_forgotten, _forgotten, _stale_copy, _stale_copy, _one_by_one),
    *_OF_TWO,
    *(_black_hole, _relisted),
)
