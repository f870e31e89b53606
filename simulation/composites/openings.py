"""Directories that are opened again and again, so that they retire the origins of their past openings."""

from __future__ import annotations

from simulation.composites.stage import FAMILIES, Composed, Stage
from simulation.plan import Act, Crash, Cut, Fault, Stop, Weather


def reopened(stage: Stage) -> Composed:
    """Some nodes are restarted many times and write in between, so that they retire origins; others are cut off meanwhile.

    Owed: everything, but for a disk that is lost in the end.
    """
    faults: list[Fault] = []
    acts: list[Act] = []
    families = stage.families(list(FAMILIES))
    names = stage.random.sample(stage.nodes, stage.random.randint(1, len(stage.nodes)))
    at = stage.at
    is_trimmed = stage.random.random() < 0.5
    for _ in range(stage.random.randint(4, 9)):
        name = stage.random.choice(names)
        down_s = stage.between(0.05, 0.2)
        faults.append(
            Stop(at=at, node=name, down_s=down_s) if stage.random.random() < 0.5 else Crash(at=at, node=name, down_s=down_s)
        )
        # The first acts give each opening an origin; so do those of the nodes that are not restarted.
        for family in families:
            acts += stage.acts(FAMILIES[family], [name], (at + down_s + 0.05, at + down_s + 0.4), most=2)
        acts += stage.acts(("append", "read-journal"), stage.nodes, (at, at + 1.0), most=2)
        if is_trimmed:
            acts += stage.acts(("write-log",), [name], (at + down_s + 0.05, at + down_s + 0.4), most=3)
            acts += stage.acts(("trim-log", "read-log"), stage.nodes, (at + down_s + 0.2, at + 1.5), most=2)
        at = round(at + stage.between(0.4, 1.5), 3)
    if stage.random.random() < 0.5:
        away = stage.random.choice(stage.nodes)
        others = [name for name in stage.nodes if name != away]
        cut_at, for_s = stage.between(stage.at, at), stage.between(0.5, 4.0)
        faults.append(Cut(at=cut_at, sources=[away], targets=others, for_s=for_s, both=stage.random.random() < 0.7))
    if stage.random.random() < 0.5:  # Vectors arrive before the operations that retired what they lack.
        loss = stage.between(0.1, 0.5)
        faults.append(Weather(at=stage.at, for_s=round(at - stage.at, 3), loss=loss, sources=[], targets=[]))
    if stage.losers and stage.random.random() < 0.4:  # It is told what it does not know to be retired.
        lost_at = round(at + stage.between(0.2, 1.0), 3)
        faults.append(stage.loss(stage.random.choice(stage.losers), lost_at, stage.between(stage.at, at)))
    for family in families:
        acts += stage.acts(FAMILIES[family], stage.nodes, (at, at + 2.0), most=4)
    if is_trimmed:
        acts += stage.acts(("write-log", "trim-log", "read-log"), stage.nodes, (at + 1.0, at + 5.0), least=6, most=16)
    settings: dict[str, int | float | str] = {
        "retire_origins_min": stage.random.choice((1, 1, 2, 3)),
        "sync_interval_s": stage.random.choice((0.1, 0.3)),
        "retired_origins_max": 1 if is_trimmed else 4096,  # So that ends of trims outlive what is known of their origins.
    }
    return Composed(faults, acts, settings, at)
