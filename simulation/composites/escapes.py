"""Operations that a node has pushed, and loses before they are durable there."""

from __future__ import annotations

from simulation.composites.stage import FAMILIES, Composed, Stage
from simulation.plan import Act, Crash, CrashAt, Cut, Fault, SlowDisk, Stop, Weather


def escaped(stage: Stage) -> Composed:
    """A node crashes while it syncs what others have by then, some of them late or not at all; clients go on elsewhere.

    It does so several times. Another node may lose its disk meanwhile, or this one its own: a copy of it is put back.

    Owed: whatever was acknowledged, less what stood on lost disks alone; and each request once.
    """
    node = stage.random.choice([*stage.losers, *stage.nodes])
    others = [name for name in stage.nodes if name != node]
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(1, 4)):
        sync_s = stage.between(0.03, 0.4)
        for family in stage.families(list(FAMILIES)):
            kinds, again_s = FAMILIES[family], stage.between(0.0, 1.0)
            acts += stage.acts(kinds, [node], (at - 0.5, at - 0.1), least=1, most=3)  # Else the origin is not durable yet.
            acts += stage.acts(kinds, [node], (at, at + sync_s / 3), least=2, most=6, repeats=0.4, again_s=again_s)
            acts += stage.acts(kinds, stage.nodes, (at + sync_s, at + 2.0), least=1, most=6, repeats=0.2)
        faults.append(SlowDisk(at=round(at - 0.02, 3), node=node, sync_s=sync_s, for_s=round(2 * sync_s + 0.1, 3)))
        down_s = stage.between(0.02, 1.0)
        crash: Fault = Crash(at=round(at + sync_s * stage.between(0.3, 0.95), 3), node=node, down_s=down_s)
        if stage.random.random() < 0.5:
            crash = CrashAt(at=at, node=node, point="appended", nth=stage.random.randint(1, 4), down_s=down_s)
        faults.append(crash)
        if stage.random.random() < 0.4:
            deaf = stage.random.sample(others, stage.random.randint(1, len(others)))
            faults.append(Cut(at=round(at - 0.01, 3), sources=[node], targets=deaf, for_s=stage.between(0.1, 2.0), both=False))
        if stage.random.random() < 0.3:
            faults.append(
                Weather(at=round(at - 0.01, 3), for_s=round(sync_s + down_s, 3), delay_s=stage.between(0.05, 1.0), reorder=0.3)
            )
        if stage.random.random() < 0.3:
            faults.append(
                SlowDisk(at=at, node=stage.random.choice(others), sync_s=stage.between(0.1, 1.0), for_s=stage.between(0.3, 2.0))
            )
        if stage.losers and stage.random.random() < 0.4:
            lost_at = round(at + sync_s + stage.between(0.0, 2.0), 3)
            faults.append(stage.loss(stage.random.choice(stage.losers), lost_at, stage.between(max(0.0, at - 1.0), lost_at)))
        if stage.random.random() < 0.2:
            faults.append(Stop(at=round(at + 2.0, 3), node=node, down_s=stage.between(0.05, 0.5)))
        at = round(at + stage.between(2.0, 4.0), 3)
    return Composed(faults, acts, {}, at)
