"""What goes wrong on one node: a sync that fails, and clocks that are off."""

from __future__ import annotations

from shoal.crdt.dot import END_MS
from simulation.composites.stage import FAMILIES, NEVER_S, YEAR_MS, Composed, Stage
from simulation.plan import Act, ClockJump, Crash, Cut, Fault, FullDisk
from simulation.world.environment import START_MS


def failed_sync(stage: Stage) -> Composed:
    """A sync of a node fails while its agents write; they go on reading there until it is restarted.

    Owed: everything but writes of unknown outcome; and nobody is shown what that sync was to cover.
    """
    node = stage.random.choice(stage.nodes)
    down_s = stage.between(0.5, 4.0)
    faults: list[Fault] = [FullDisk(at=stage.at, node=node, operation="sync", down_s=down_s)]
    acts: list[Act] = []
    for family in dict.fromkeys([stage.random.choice(("watching", *FAMILIES)), *stage.families(list(FAMILIES))]):
        kinds = FAMILIES[family]
        acts += stage.acts(kinds, [node], (stage.at - 0.8, stage.at), most=4)
        acts += stage.acts(kinds[:1], [node], (stage.at, stage.at + 0.1), most=3)
        acts += stage.acts(kinds[1:] or kinds, [node], (stage.at + 0.05, stage.at + down_s), least=2, most=6)
    return Composed(faults, acts, {}, round(stage.at + down_s, 3))


def years_off(stage: Stage) -> Composed:
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
    for family in stage.families(list(FAMILIES)):
        kinds = FAMILIES[family]
        acts += stage.acts(kinds, stage.nodes, (stage.at - 0.5, stage.at), most=3)
        acts += stage.acts(kinds, [node], (stage.at, back_at), most=6)
        acts += stage.acts(kinds, stage.nodes, (stage.at + 0.2, back_at + 4.0), most=10)
    settings: dict[str, int | float | str] = {"key_window_s": NEVER_S} if stage.random.random() < 0.8 else {}
    if stage.random.random() < 0.6:  # Else only a node that nobody told the time issues such times.
        settings["clock_skew_max_ms"] = NEVER_S * 1000
    return Composed(faults, acts, settings, back_at)


def clock_off(stage: Stage) -> Composed:
    """A node's clock jumps by seconds to hours, and back later; another may begin anew while it reaches the first alone.

    Owed: everything. No time that is off reaches the others, once they have told it; they are not disturbed.
    """
    off, other, *rest = stage.random.sample(stage.nodes, len(stage.nodes))
    by_ms = stage.random.choice((-1, 1)) * int(10 ** stage.random.uniform(4.2, 7.2))
    back_at = round(stage.at + stage.between(6.0, 14.0), 3)
    faults: list[Fault] = [ClockJump(at=stage.at, node=off, by_ms=by_ms)]
    if stage.random.random() < 0.7:
        faults.append(ClockJump(at=back_at, node=off, by_ms=-by_ms))
    if rest and stage.random.random() < 0.6:
        crash_at = round(stage.at + stage.between(0.2, 1.0), 3)
        faults.append(
            Cut(at=round(crash_at - 0.1, 3), sources=[other], targets=rest, both=True, for_s=stage.between(12.0, 16.0))
        )
        faults.append(Crash(at=crash_at, node=other, down_s=stage.between(0.05, 0.3)))
    acts: list[Act] = []
    for family in stage.families(list(FAMILIES)):
        kinds = FAMILIES[family]
        acts += stage.acts(kinds, stage.nodes, (stage.at - 0.5, stage.at), most=3)
        acts += stage.acts(kinds, [off], (stage.at, back_at), least=2, most=6)
        acts += stage.acts(kinds, stage.nodes, (stage.at + 0.2, back_at + 4.0), most=10)
    return Composed(faults, acts, {}, back_at)
