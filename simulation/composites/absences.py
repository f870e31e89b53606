"""Nodes that do not hear each other, for long or in turn, or not all that is sent."""

from __future__ import annotations

from simulation.composites.stage import ERASERS, FAMILIES, KEY_WINDOW_S, Composed, Stage
from simulation.plan import Act, Crash, Cut, Fault, Pause, Stop, Weather

_WINDOWS: dict[str, tuple[int | float, ...]] = {
    "early_operations_s": (0.5, 2.0),
    "quarantine_s": (0.5, 2.0),
    "item_expiry_grace_s": (0.5, 3.0),
    "watch_replay_operations_max": (3, 20),
    "document_history_s": (0.2, 3.0),
    "session_wait_s": (0.2,),
    "key_window_s": (KEY_WINDOW_S,),
    "sync_interval_s": (0.2, 2.0),
    "objects_known_max": (1, 4),
}


def one_way(stage: Stage) -> Composed:
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
        for family in stage.families(list(FAMILIES))
        for act in stage.acts(FAMILIES[family], stage.nodes, (stage.at, stage.at + for_s + 1.0), most=12)
    ]
    return Composed(faults, acts, {}, stage.at + for_s)


def outage(stage: Stage) -> Composed:
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
    for family in stage.families([*FAMILIES, *ERASERS]):
        kinds = FAMILIES[family]
        acts += stage.acts(kinds[:1], stage.nodes, (stage.at - 0.8, stage.at), most=3)
        acts += stage.acts(ERASERS.get(family, kinds), others, (stage.at, back_at), most=6)
        acts += stage.acts(kinds, stage.nodes, (stage.at, back_at), most=8)
        acts += stage.acts(kinds, stage.nodes, (back_at, back_at + 2.0), most=5)
    settings: dict[str, int | float | str] = {
        name: stage.random.choice(values) for name, values in _WINDOWS.items() if stage.random.random() < 0.5
    }
    return Composed([stage.random.choice(away)], acts, settings, back_at)


def black_hole(stage: Stage) -> Composed:
    """What a node sends to another arrives if it is small, and is lost if it is large: the other hears what it does not get.

    Owed: everything; and that the other fetches it from a third node in time (`simulation.workload.probing`).
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
        acts += stage.acts(FAMILIES[family], [source, *rest], (stage.at, stage.at + for_s - 6.0), least=8, most=25)
    return Composed(faults, acts, {"quorum_timeout_s": 1.0, "sync_interval_s": 0.3}, stage.at + for_s)


def met_late(stage: Stage) -> Composed:
    """Some nodes are cut off from each other by pairs, in turn, while all do the same with the same things.

    Owed: everything; and what arrives in another order on each node is the same in the end.
    """
    acts: list[Act] = []
    faults: list[Fault] = []
    at = stage.at
    family = stage.random.choice(list(FAMILIES)) if stage.random.random() < 0.7 else "jobs"  # Few keys: all meet in them.
    apart = stage.random.sample(stage.nodes, min(3, len(stage.nodes)))
    for _ in range(stage.random.choice((2, 3))):
        for_s = stage.between(0.6, 2.5)
        late = apart[-1]
        others = [name for name in stage.nodes if name != late]
        faults.append(Cut(at=at, sources=[late], targets=others, for_s=for_s))
        if stage.random.random() < 0.7 and len(apart) > 2:
            faults.append(Cut(at=round(at + for_s / 2, 3), sources=[apart[0]], targets=[apart[1]], for_s=round(for_s / 2, 3)))
        for node in apart:
            kinds = stage.random.sample(FAMILIES[family], len(FAMILIES[family]))
            acts += stage.acts(kinds, [node], (at + 0.05, at + for_s), least=2, most=5)
        at = round(at + for_s * stage.random.random(), 3)
        stage.random.shuffle(apart)
    return Composed(faults, acts, {}, at)
