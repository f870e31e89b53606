"""Directories that begin: the first start of a cluster, and disks that are lost while others can be reached or not."""

from __future__ import annotations

from simulation.composites.stage import FAMILIES, Composed, Stage
from simulation.plan import Act, Crash, Cut, Fault, Wipe


def _acts(stage: Stage, begins_at: float, ends_at: float) -> list[Act]:
    return [
        act
        for family in stage.families(list(FAMILIES))
        for act in stage.acts(FAMILIES[family], stage.nodes, (begins_at, ends_at), least=4, most=16)
    ]


def born_apart(stage: Stage) -> Composed:
    """At the first start of the cluster one node hears few others, or is down; maybe one loses its disk before all have met.

    Owed: what a quorum holds.
    """
    node = stage.random.choice(stage.nodes)
    others = [name for name in stage.nodes if name != node]
    deaf_to = stage.random.sample(others, stage.random.randint(1, len(others)))
    for_s = stage.between(0.3, 5.0)
    faults: list[Fault] = [Cut(at=0.0, sources=[node], targets=deaf_to, for_s=for_s)]
    if stage.random.random() < 0.4:
        crashed = stage.random.choice(stage.nodes)
        faults.append(Crash(at=stage.between(0.0, for_s), node=crashed, down_s=stage.between(0.05, 3.0)))
    if stage.losers and stage.random.random() < 0.6:
        faults.append(
            Wipe(at=stage.between(0.0, 2 * for_s), node=stage.random.choice(stage.losers), down_s=stage.between(0.05, 1.0))
        )
    return Composed(faults, _acts(stage, for_s, for_s + 4.0), {}, for_s + 5.0)


def wiped(stage: Stage) -> Composed:
    """A disk is lost while its node can reach some of the others or none, and is killed again, or not, while it is filled.

    Owed: what a quorum holds.
    """
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    ends_at = round(stage.at + stage.between(3.0, 7.0), 3)
    faults: list[Fault] = [Wipe(at=stage.at, node=node, down_s=stage.between(0.05, 0.6))]
    if stage.random.random() < 0.7:
        deaf_to = stage.random.sample(others, stage.random.randint(1, len(others)))
        faults.append(Cut(at=round(stage.at - 0.2, 3), sources=[node], targets=deaf_to, for_s=stage.between(0.5, 4.0)))
    if stage.random.random() < 0.6:
        keep = stage.random.choice((0, 3, None))
        again_at = round(stage.at + stage.between(0.3, 2.0), 3)
        faults.append(Crash(at=again_at, node=node, down_s=stage.between(0.05, 0.5), keep=keep))
    if stage.random.random() < 0.4:
        crashed = stage.random.choice(others)
        faults.append(Crash(at=stage.between(stage.at, ends_at), node=crashed, down_s=stage.between(0.1, 1.5)))
    return Composed(faults, _acts(stage, round(stage.at - 0.8, 3), ends_at), {}, ends_at)
