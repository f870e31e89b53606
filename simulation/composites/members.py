"""Members that operators remove and add again while clients write and other things go wrong."""

from __future__ import annotations

from typing import Literal

from simulation.composites.stage import FAMILIES, Composed, Stage
from simulation.plan import Act, Crash, Cut, Disown, Fault, Leave, Replace, Wipe

SETTINGS: dict[str, int | float | str] = {"quorum_register_found_s": 0.2, "members_tell_s": 0.3, "mark_interval_s": 1.0}


def _acts(stage: Stage, ends_at: float) -> list[Act]:
    return [
        act
        for family in stage.families(list(FAMILIES))
        for act in stage.acts(FAMILIES[family], stage.nodes, (stage.at - 0.8, ends_at), least=8, most=24)
    ]


def left(stage: Stage) -> Composed:
    """A member is drained, or dies and is forgotten; an empty one is added in its place. Others may crash, or be cut off.

    Owed: what a quorum holds; of a node that is drained, everything that it acknowledged.
    """
    how: Literal["drain", "forget"] = "drain" if stage.random.random() < 0.4 else "forget"
    node = stage.random.choice(stage.losers)
    ends_at = round(stage.at + stage.between(4.0, 9.0), 3)
    faults: list[Fault] = [Leave(at=stage.at, node=node, how=how, away_s=stage.between(0.05, 3.0))]
    others = [name for name in stage.nodes if name != node]
    if stage.random.random() < 0.5:  # Only a few have what it wrote last.
        heard = stage.random.sample(others, stage.random.randrange(len(others)))
        deaf = [name for name in others if name not in heard]
        faults.append(Cut(at=round(stage.at - 0.7, 3), sources=[node], targets=deaf, for_s=stage.between(0.6, 2.0)))
    if len(others) > 1 and stage.random.random() < 0.5:
        apart = stage.random.choice(others)
        away_s = stage.between(0.5, 5.0)
        faults.append(
            Cut(at=stage.between(stage.at, ends_at), sources=[apart], targets=[o for o in others if o != apart], for_s=away_s)
        )
    for _ in range(stage.random.choice((0, 1, 1, 2))):
        crashed = stage.random.choice(stage.nodes)
        faults.append(Crash(at=stage.between(stage.at, ends_at), node=crashed, down_s=stage.between(0.1, 1.5)))
    return Composed(faults, _acts(stage, ends_at), SETTINGS, ends_at)


def replaced(stage: Stage) -> Composed:
    """A member that is up, or dead, is replaced by one that was drained before. Others may crash, or be cut off.

    Owed: what a quorum holds; of a node that is drained, everything that it acknowledged.
    """
    # Without the spare one and the dead one, a majority of the members must be left.
    how: Literal["drain", "forget"] = "forget" if len(stage.nodes) > 3 and stage.random.random() < 0.6 else "drain"
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    spare = stage.random.choice(others)
    ends_at = round(stage.at + stage.between(5.0, 10.0), 3)
    faults: list[Fault] = [Replace(at=stage.at, node=node, by=spare, how=how, away_s=stage.between(0.05, 2.0))]
    if stage.random.random() < 0.5:
        apart = stage.random.choice(others)
        cut_at = stage.between(stage.at - 0.7, ends_at)
        faults.append(Cut(at=cut_at, sources=[apart], targets=[o for o in others if o != apart], for_s=stage.between(0.5, 4.0)))
    for _ in range(stage.random.choice((0, 1, 1, 2))):
        crashed = stage.random.choice(stage.nodes)
        faults.append(Crash(at=stage.between(stage.at, ends_at), node=crashed, down_s=stage.between(0.1, 1.5)))
    return Composed(faults, _acts(stage, ends_at), SETTINGS, ends_at)


def disowned(stage: Stage) -> Composed:
    """A disk is lost, its node is filled again, and an operator has the lost directory forgotten, while others are cut off.

    Owed: what a quorum holds.
    """
    node = stage.random.choice(stage.losers)
    lost_at = round(stage.at + stage.between(0.0, 1.0), 3)
    ends_at = round(lost_at + stage.between(4.0, 9.0), 3)
    faults: list[Fault] = [
        Wipe(at=lost_at, node=node, down_s=stage.between(0.05, 0.6)),
        Disown(at=stage.between(lost_at + 0.5, lost_at + 3.0), node=node),
    ]
    others = [name for name in stage.nodes if name != node]
    if stage.random.random() < 0.7:  # Only some have what it wrote last.
        heard = stage.random.sample(others, stage.random.randrange(len(others)))
        deaf = [name for name in others if name not in heard]
        faults.append(Cut(at=round(lost_at - 0.7, 3), sources=[node], targets=deaf, for_s=stage.between(0.6, 2.0)))
    if len(others) > 1 and stage.random.random() < 0.6:
        apart = stage.random.choice(others)
        cut_at, away_s = stage.between(lost_at, lost_at + 2.0), stage.between(0.5, 4.0)
        faults.append(Cut(at=cut_at, sources=[apart], targets=[o for o in others if o != apart], for_s=away_s))
    if stage.random.random() < 0.4:
        crashed = stage.random.choice(stage.nodes)
        faults.append(Crash(at=stage.between(lost_at + 1.0, ends_at), node=crashed, down_s=stage.between(0.1, 1.5)))
    return Composed(faults, _acts(stage, ends_at), SETTINGS, ends_at)
