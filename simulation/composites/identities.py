"""Nodes that run twice, addresses that lead elsewhere, and lists of members that change."""

from __future__ import annotations

from simulation.composites.stage import FAMILIES, Composed, Stage
from simulation.plan import Act, Clone, Crash, Cut, Fault, Misroute, Relist


def cloned(stage: Stage) -> Composed:
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
    for family in dict.fromkeys([stage.random.choice(("budgets", "steps", "erasing")), *stage.families(list(FAMILIES))]):
        kinds = FAMILIES[family]
        acts += stage.acts(kinds, stage.nodes, (stage.at, cloned_at), most=6)
        acts += stage.acts(kinds, [node], (cloned_at + 0.1, cloned_at + for_s), most=6)
        acts += stage.acts(kinds, stage.nodes, (cloned_at, cloned_at + for_s + 1.0), most=10)
    return Composed(faults, acts, {}, cloned_at + for_s)


def misrouted(stage: Stage) -> Composed:
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
        for family in stage.families(list(FAMILIES))
        for act in stage.acts(
            FAMILIES[family], stage.nodes, (stage.at, stage.at + for_s + 4.0), least=4, most=15, durabilities=("quorum", "all")
        )
    ]
    return Composed(faults, acts, {}, stage.at + for_s)


def relisted(stage: Stage) -> Composed:
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
        for family in stage.families(list(FAMILIES))
        for act in stage.acts(FAMILIES[family], stage.nodes, (stage.at, at + 2.0), least=5, most=20)
    ]
    return Composed(faults, acts, {}, at)
