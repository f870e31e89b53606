"""Draw plans from seeds, as a swarm: each seed leaves most kinds of trouble out, and has much of the rest.

Laws:
- A seed and a profile give one plan, for ever the same in one version of this module.
- Nothing is drawn that the promises do not cover: the nodes that may lose their disks
  (wiped, set back, corrupt) are always a minority, the same in all of a plan. So are, from the time at which a row is
  altered on a disk, that one and those that are lost later.
- A plan of few events is as likely as one of many: what fails small is found small.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from random import Random
from typing import NamedTuple, get_args

from msgspec.structs import replace

from shoal.protocol.requests import Durability
from simulation.composing import OF_ESCAPES, OF_LIVES, OF_MEMBERS, compose
from simulation.composites.stage import KEY_WINDOW_S
from simulation.parts.all import FAMILIES
from simulation.parts.courses import BOUNDS as COURSE_BOUNDS
from simulation.parts.drawing import draw_parts
from simulation.parts.evidence import FAMILY as EVIDENCE
from simulation.plan import (
    Act,
    ActKind,
    AlterRow,
    ClockDrift,
    ClockJump,
    Clone,
    CorruptBlock,
    Crash,
    CrashAt,
    CrashPoint,
    Cut,
    Disown,
    Fault,
    FullDisk,
    Leave,
    Pause,
    Plan,
    Relist,
    Replace,
    Restore,
    SlowDisk,
    Stop,
    Weather,
    Wipe,
    struck,
)
from simulation.profiles import Profile, profile_of
from simulation.shipping import shipped
from simulation.tiering import laid, shelved, tiered

ACTS_MIN = 20
DURATION_S = (5.0, 30.0)

LOST_AT_THE_END = 0.1
"""The share of the plans in which a minority is lost for good, at the end."""

LAST_MOMENT_S = 0.01
SPARED_S = 0.5
"""Nothing happens in the first moments: nodes are meeting."""

SCRUB_INTERVAL_S = 2.0
"""Nodes compare their rows this often in each run: what they take for different must have been altered."""


class _Scene(NamedTuple):
    """What the faults of one plan are drawn from."""

    random: Random
    nodes: list[str]
    losers: list[str]  # Those that may lose their disks.
    duration_s: float
    storms: list[float]  # Times around which faults gather; empty: they fall anywhere.

    def at(self) -> float:
        last = self.duration_s * 0.95
        if self.storms and self.random.random() < 0.7:
            return _round(min(last, max(SPARED_S, self.random.choice(self.storms) + self.random.gauss(0, 0.3))))
        return _round(self.random.uniform(SPARED_S, last))

    def node(self) -> str:
        return self.random.choice(self.nodes)

    def loser(self) -> str:
        return self.random.choice(self.losers)

    def while_s(self, longest_s: float = 6.0) -> float:
        return _round(min(longest_s, self.random.expovariate(1.0)) + 0.05)


def draw(seed: int, *, profile: str = "default") -> Plan:
    """
    Raises:
        InvalidValue: there is no such profile.
    """
    return _drawn(seed, profile).plan


def composites_of(seed: int, *, profile: str = "default") -> frozenset[str]:
    """The names of the composites that the plan of a seed has.

    Raises:
        InvalidValue: there is no such profile.
    """
    return _drawn(seed, profile).composites


class _Drawn(NamedTuple):
    plan: Plan
    composites: frozenset[str] = frozenset()


def _drawn(seed: int, profile: str) -> _Drawn:
    profile, wanted = profile_of(profile, seed)
    random = _random(f"draw/{profile}/{seed}")
    nodes = random.choices((1, 2, 3, 4, 5), weights=(6, 8, 66, 8, 12))[0]
    agents = random.randint(1, 6)
    duration_s = _round(random.uniform(*DURATION_S))
    faults, losers = _faults(random, nodes, duration_s, wanted)
    acts = _acts(random, agents, duration_s, wanted)
    if not wanted.tiered or seed % 4 == 0:
        acts += draw_parts(seed, profile, agents, (SPARED_S, duration_s), wanted.own)
    plan = Plan(
        seed=seed,
        nodes=nodes,
        agents=agents,
        duration_s=duration_s,
        settings=_settings(random, faults),
        faults=faults,
        acts=sorted(acts, key=_at),
    )
    plan, composites = _composed(plan, losers, wanted, _random(f"compose/{profile}/{seed}"))
    plan = _scrubbed(plan, wanted, _random(f"alter-row/{profile}/{seed}"))
    plan = _without_a_minority(plan, wanted, _random(f"lost/{profile}/{seed}"))
    plan = _truncated(plan, _random(f"truncate/{profile}/{seed}"))
    plan = _by_snapshot(plan, _random(f"snapshot/{profile}/{seed}"))
    plan = _in_steps(plan, _random(f"heavy/{profile}/{seed}"))
    if wanted.tiered:
        plan = tiered(plan, _random(f"tiered/{profile}/{seed}"), SPARED_S)
    if wanted.shelved:
        plan = shelved(plan, _random(f"shelved/{profile}/{seed}"), SPARED_S)
    if wanted.laid:
        plan = laid(plan, _random(f"laid/{profile}/{seed}"), SPARED_S)
    if wanted.told:
        plan = replace(plan, settings=COURSE_BOUNDS | plan.settings)
    if wanted.ships:
        plan = shipped(plan, _random(f"ship/{profile}/{seed}"))
    marks = {"truncated": "log_keep_s", "refilled": "snapshot_operations_min"}
    return _Drawn(plan, composites | {mark for mark, setting in marks.items() if setting in plan.settings})


def _random(purpose: str) -> Random:
    return Random(int.from_bytes(sha256(purpose.encode()).digest()[:8], "big"))


def _composed(plan: Plan, losers: list[str], wanted: Profile, random: Random) -> _Drawn:
    """The plan with composites, if it is one that has them. Their randomness is their own: the rest of it stays as it is."""
    if random.random() >= wanted.composed:
        return _Drawn(plan)
    losers = losers or random.sample(plan.names, (plan.nodes - 1) // 2)
    agents = max(plan.agents, plan.nodes)
    begins = (1.0, max(1.0, plan.duration_s - 12.0))
    composites = [compose(random, plan.names, losers, agents, begins) for _ in range(random.choice((1, 1, 2)))]
    if wanted.operated:
        composites = [compose(random, plan.names, losers, agents, begins, OF_MEMBERS), *composites[1:]]
    if wanted.escaped:
        composites = [compose(random, plan.names, losers, agents, begins, OF_ESCAPES) for _ in composites]
    if wanted.called:
        # Before all nodes have met once there is no register, so that no operator can remove a member.
        later = 2.0, max(2.0, begins[1])
        composites = [compose(random, plan.names, losers, agents, later, OF_LIVES) for _ in composites]
        composites = [each for each in composites if each.name == "born_apart"][:1] or composites
    settings = dict(plan.settings)
    for composed in composites:
        settings |= composed.settings
    faults = sorted([*plan.faults, *(fault for composed in composites for fault in composed.faults)], key=_at)
    if any(isinstance(fault, Relist) for fault in faults):
        # A member that leaves may be the last to hold what a lost disk held: the list is shortened where none is lost.
        faults = [fault for fault in faults if not isinstance(fault, Wipe | Restore | CorruptBlock)]
    faults = _orderly(faults)
    if settings.get("key_window_s") == KEY_WINDOW_S and any(
        isinstance(fault, ClockJump | ClockDrift | Relist) for fault in faults
    ):
        # A node whose clock is off by more than the window refuses what clients send it. A member that was left out may
        # bring a request whose key the others have removed.
        del settings["key_window_s"]
    if any(isinstance(fault, Restore) for fault in faults):
        settings.setdefault("mark_interval_s", random.choice((0.1, 1.0)))
    plan = replace(
        plan,
        agents=agents,
        duration_s=_round(max(plan.duration_s, *(composed.ends_at + 1.0 for composed in composites))),
        settings=settings,
        faults=faults,
        acts=sorted([*plan.acts, *(act for composed in composites for act in composed.acts)], key=_at),
        callers=wanted.called,
    )
    return _Drawn(plan, frozenset(composed.name for composed in composites if composed.name))


def _orderly(faults: list[Fault]) -> list[Fault]:
    """Without what no operator does: put a disk back that the members have forgotten; or give the nodes lists of their own."""
    changed = {fault.node: fault.at for fault in faults if isinstance(fault, Leave | Replace | Disown)}
    changed |= {fault.by: fault.at for fault in faults if isinstance(fault, Replace)}
    if not changed:
        return faults
    return [
        fault
        for fault in faults
        if not isinstance(fault, Relist)
        and not (isinstance(fault, Restore) and fault.at >= changed.get(fault.node, fault.at + 1))
        and not (isinstance(fault, Clone) and fault.node in changed)
    ]


def _without_a_minority(plan: Plan, wanted: Profile, random: Random) -> Plan:
    """In some plans nodes lose their disks in the last moment, before anything is healed: the others are judged alone.

    Together with the nodes that lost their disks before, they are a minority.
    """
    room = (plan.nodes - 1) // 2
    if not wanted.faults_max or not room or random.random() >= LOST_AT_THE_END:
        return plan
    losers = sorted(struck(plan.faults))
    kept = [name for name in plan.names if name not in losers]
    minority = [*losers, *random.sample(kept, max(0, room - len(losers)))]
    if len(minority) > room:
        return plan
    at = _round(plan.duration_s - LAST_MOMENT_S)
    wiped = [Wipe(at=at, node=node) for node in sorted(random.sample(minority, random.randint(1, room)))]
    return replace(plan, faults=sorted([*plan.faults, *wiped], key=_at))


TRUNCATED = 0.5
"""The share of the plans in which operations leave the log, of those in which the members stay the same."""
HEAVY = 0.2
"""The share of the plans in which all writes that may be decided in steps are, and what peers send is drafted in steps."""
_STEPS = {"heavy_bytes": 0, "heavy_step_bytes": 0, "changes_step_max": 1}


def _in_steps(plan: Plan, random: Random) -> Plan:
    return replace(plan, settings={**plan.settings, **_STEPS}) if random.random() < HEAVY else plan


def _truncated(plan: Plan, random: Random) -> Plan:
    """In some plans operations leave the log while the plan lasts.

    Not if a machine is set back, which its node cannot notice: what that one writes before it meets the others may build
    on what all others have removed for good.
    """
    drawn = random.random(), random.choice((0.2, 1.0, 4.0))
    # Nothing is forgotten of an origin whose operations are in the log.
    forgets = plan.settings.get("retired_origins_max") == 1
    forgets = forgets and not any(isinstance(fault, AlterRow | ClockJump | Restore) for fault in plan.faults)
    if (drawn[0] >= TRUNCATED and not forgets) or any(
        isinstance(fault, Relist) or (isinstance(fault, Restore) and fault.whole) for fault in plan.faults
    ):
        return plan
    return replace(plan, settings={**plan.settings, "log_keep_s": 0.2 if forgets else drawn[1]})


SNAPSHOTS = 0.7
"""The share of the plans in which snapshots are small and taken early, of those in which a directory is lost."""


def _by_snapshot(plan: Plan, random: Random) -> Plan:
    """In some plans in which directories are lost, a node takes snapshots of partitions of which little was written."""
    if not any(isinstance(fault, Wipe | Restore | CorruptBlock) for fault in plan.faults) or random.random() >= SNAPSHOTS:
        return plan
    settings: dict[str, int | float | str] = {
        "snapshot_operations_min": random.choice((1, 1, 4)),
        "snapshot_piece_bytes": random.choice((200, 500, 2000, 65536)),
        "snapshots_open_max": random.choice((1, 3, 8)),
        "snapshot_idle_s": random.choice((1.0, 5.0)),
        "snapshot_memory_bytes": random.choice((1, 1, 1000, 65536)),
    }
    faults = [*plan.faults, *_while_it_refills(plan, random)]
    return replace(plan, settings=settings | plan.settings, faults=sorted(faults, key=_at))


def _while_it_refills(plan: Plan, random: Random) -> list[Fault]:
    """A crash of a node that begins anew with an empty directory, after so many syncs; the disks of the others may be slow."""
    wiped = [fault for fault in plan.faults if isinstance(fault, Wipe)]
    if not wiped or random.random() < 0.4:
        return []
    lost = random.choice(wiped)
    point: CrashPoint = random.choice(("appended", "synced"))
    at, down_s, nth = _round(lost.at + lost.down_s), _round(random.uniform(0.1, 3.0)), random.randint(1, 30)
    faults: list[Fault] = []
    if random.random() < 0.6 and at < plan.duration_s:
        faults.append(CrashAt(at=at, node=lost.node, point=point, nth=nth, down_s=down_s, keep=random.choice((0, 1, None))))
    if random.random() < 0.6:
        faults += [
            SlowDisk(at=lost.at, node=name, sync_s=0.2, for_s=lost.down_s + 3.0) for name in plan.names if name != lost.node
        ]
    return faults


# ── faults ────────────────────────────────────────────────────────────────────


def _crash(scene: _Scene) -> Fault:
    keep = scene.random.choice((0, 0, 1, 3, None, None))
    return Crash(at=scene.at(), node=scene.node(), down_s=scene.while_s(), keep=keep)


def _crash_at(scene: _Scene) -> Fault:
    point: CrashPoint = scene.random.choice(get_args(CrashPoint))
    nth = 1 + int(scene.random.expovariate(0.5))
    keep = scene.random.choice((0, 0, 1, None))
    return CrashAt(at=scene.at(), node=scene.node(), point=point, nth=nth, down_s=scene.while_s(), keep=keep)


def _stop(scene: _Scene) -> Fault:
    return Stop(at=scene.at(), node=scene.node(), down_s=scene.while_s())


def _pause(scene: _Scene) -> Fault:
    return Pause(at=scene.at(), node=scene.node(), for_s=scene.while_s())


def _cut(scene: _Scene) -> Fault:
    """A node alone, halves, one direction, a bridge that only the middle spans, or a node without its clients."""
    order = scene.random.sample(scene.nodes, len(scene.nodes))
    at, for_s = scene.at(), scene.while_s(10.0)
    shape = scene.random.choice(("alone", "halves", "one-way", "bridge", "clients"))
    if shape == "clients" or len(order) == 1:
        return Cut(at=at, sources=["client"], targets=order[:1], for_s=for_s)
    if shape == "alone":
        return Cut(at=at, sources=order[:1], targets=order[1:], for_s=for_s)
    if shape == "one-way":
        return Cut(at=at, sources=order[:1], targets=order[1 : scene.random.randint(2, len(order))], for_s=for_s, both=False)
    if shape == "bridge" and len(order) > 2:
        middle = len(order) // 2
        return Cut(at=at, sources=order[:middle], targets=order[middle + 1 :], for_s=for_s)
    half = scene.random.randint(1, len(order) - 1)
    return Cut(at=at, sources=order[:half], targets=order[half:], for_s=for_s)


def _weather(scene: _Scene) -> Fault:
    def share(most: float) -> float:
        return _round(scene.random.uniform(0, most)) if scene.random.random() < 0.5 else 0.0

    return Weather(
        at=scene.at(),
        for_s=scene.while_s(15.0),
        loss=share(0.6),
        duplicate=share(0.6),
        reorder=share(0.6),
        delay_s=share(1.0),
    )


def _clock_jump(scene: _Scene) -> Fault:
    by_ms = int(10 ** scene.random.uniform(1, 6.5))  # 10 ms to an hour.
    return ClockJump(at=scene.at(), node=scene.node(), by_ms=scene.random.choice((-1, 1)) * by_ms)


def _clock_drift(scene: _Scene) -> Fault:
    return ClockDrift(at=scene.at(), node=scene.node(), rate=_round(scene.random.uniform(-0.5, 0.5)))


def _slow_disk(scene: _Scene) -> Fault:
    sync_s = scene.random.choice((0.02, 0.1, 0.5, 1.5))
    return SlowDisk(at=scene.at(), node=scene.node(), sync_s=sync_s, for_s=scene.while_s())


def _full_disk(scene: _Scene) -> Fault:
    return FullDisk(at=scene.at(), node=scene.node(), operation=scene.random.choice(("write", "sync")), down_s=scene.while_s())


def _corrupt_block(scene: _Scene) -> Fault:
    return CorruptBlock(at=scene.at(), node=scene.loser(), table=scene.random.choice("OLVKD"), down_s=scene.while_s())


def _wipe(scene: _Scene) -> Fault:
    return Wipe(at=scene.at(), node=scene.loser(), down_s=scene.while_s())


_WHOLE_SHARE = 0.5  # Of the disks that are set back, those that cannot tell.


def _restore(scene: _Scene) -> Fault:
    at = scene.at()
    copied_at = _round(scene.random.uniform(0, at))
    return Restore(
        at=at, node=scene.loser(), copied_at=copied_at, down_s=scene.while_s(), whole=scene.random.random() < _WHOLE_SHARE
    )


def _scrubbed(plan: Plan, wanted: Profile, random: Random) -> Plan:
    """The plan with a scrub, and with rows that the disk of one node alters, if there are some that nobody reads.

    If another disk is lost later, the two are a minority: else no majority may be left that tells which rows are right.
    """
    settings = {"scrub_interval_s": SCRUB_INTERVAL_S} | plan.settings
    faults: list[Fault] = list(plan.faults)
    if wanted.kinds and plan.nodes > 2 and any(FAMILIES.get(act.kind) == EVIDENCE for act in plan.acts):
        node = random.choice(plan.names)
        for _ in range(random.randint(0, 3)):
            at = _round(random.uniform(SPARED_S, plan.duration_s * 0.95))
            row = AlterRow(at=at, node=node, nth=random.randrange(1000))
            if len(struck([row, *(fault for fault in plan.faults if fault.at >= at)])) <= (plan.nodes - 1) // 2:
                faults.append(row)
    return replace(plan, settings=settings, faults=sorted(faults, key=_at))


_DRAWN: list[Callable[[_Scene], Fault]] = [
    _crash,
    _crash_at,
    _stop,
    _pause,
    _cut,
    _weather,
    _clock_jump,
    _clock_drift,
    _slow_disk,
    _full_disk,
]
_DRAWN_FOR_LOSERS: list[Callable[[_Scene], Fault]] = [_corrupt_block, _wipe, _restore]


def _faults(random: Random, nodes: int, duration_s: float, wanted: Profile) -> tuple[list[Fault], list[str]]:
    """The faults, and the nodes that may lose their disks."""
    names = [f"n{number + 1}" for number in range(nodes)]
    losers = random.sample(names, (nodes - 1) // 2) if random.random() < 0.5 else []
    storms = [random.uniform(1, duration_s) for _ in range(random.choice((0, 0, 1, 2)))]
    scene = _Scene(random, names, losers, duration_s, storms)
    drawn = _DRAWN + (_DRAWN_FOR_LOSERS if losers else [])
    kinds = [kind for kind in drawn if random.random() < wanted.kinds]
    faults = [kind(scene) for kind in kinds for _ in range(random.randint(1, wanted.faults_max))]
    return sorted(faults, key=_at), losers


# ── acts ──────────────────────────────────────────────────────────────────────


_DURABILITIES: list[list[Durability]] = [
    ["local"],
    ["local", "quorum"],
    ["quorum"],
    ["memory", "local"],
    ["memory", "quorum", "all"],
]


def _acts(random: Random, agents: int, duration_s: float, wanted: Profile) -> list[Act]:
    count = ACTS_MIN + int((wanted.acts_max - ACTS_MIN) * random.random() ** 2)
    share = random.choice((0.2, 0.6))  # Some do much of a little: what many do with one object is met there.
    kinds: list[ActKind] = [kind for kind in get_args(ActKind) if kind not in FAMILIES and random.random() < share] or [
        "save",
        "load",
    ]
    weights = [random.choice((1, 1, 3, 10)) for _ in kinds]
    names = "abcd"[: random.choice((1, 1, 2, 4))]
    durabilities = random.choice(_DURABILITIES)
    repeats = random.choice((0.0, 0.0, 0.1, 0.4))
    bursts = [random.uniform(SPARED_S, duration_s) for _ in range(random.choice((0, 0, 3)))]

    def at() -> float:
        if bursts and random.random() < 0.6:
            return _round(min(duration_s, random.choice(bursts) + random.expovariate(20)))
        return _round(random.uniform(SPARED_S, duration_s))

    acts = [
        Act(
            at=at(),
            agent=random.randrange(agents),
            kind=random.choices(kinds, weights=weights)[0],
            name=random.choice(names),
            durability=random.choice(durabilities),
            repeat=random.random() < repeats,
        )
        for _ in range(count)
    ]
    return sorted(acts, key=_at)


# ── settings ──────────────────────────────────────────────────────────────────

_SETTINGS: dict[str, tuple[int | float, ...]] = {
    "sync_interval_s": (0.1, 0.5, 2.0),
    "session_wait_s": (0.2, 2.0),
    "quorum_timeout_s": (0.5, 5.0),
    "push_bytes_max": (256, 4096),
    "supply_bytes_max": (256, 4096),
    "peer_send_bytes_max": (1024, 16384),
    "early_bytes_max": (512, 4096),
    "document_snapshot_updates": (2, 5),
    "document_cache_max": (1, 2),
    "page_items_max": (2, 7),
    "checkpoint_cache_bytes": (1, 1024),
    "document_compact_updates": (2, 5),
    "document_step_updates_max": (1, 3),
    "document_step_bytes_max": (32, 256),
    "document_whole_bytes_max": (32, 256),
    "peer_step_operations_max": (1, 3),
}
"""Bounds that are met at their usual values by no plan of this size."""


def _settings(random: Random, faults: list[Fault]) -> dict[str, int | float | str]:
    drawn: dict[str, int | float | str] = {
        name: random.choice(values) for name, values in _SETTINGS.items() if random.random() < 0.2
    }
    if any(isinstance(fault, CrashAt) and fault.point == "snapshot" for fault in faults):
        drawn["document_snapshot_updates"] = 2  # Or it would not come to one.
    if any(isinstance(fault, Restore) for fault in faults):
        drawn["mark_interval_s"] = random.choice((0.1, 1.0))
    return drawn


def _at(event: Fault | Act) -> float:
    return event.at


def _round(value: float) -> float:
    """Milliseconds are fine enough, and can be read."""
    return round(value, 3)
