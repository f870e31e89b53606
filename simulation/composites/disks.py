"""Disks that are lost, one after the other or together, while other nodes are away."""

from __future__ import annotations

from simulation.composites.stage import ERASERS, FAMILIES, OWN, SAVES, Composed, Stage, pruning
from simulation.plan import Act, ActKind, CorruptBlock, Crash, Cut, Fault, Pause, Restore, Stop, Weather, Wipe


def forgotten(stage: Stage) -> Composed:
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
    for family in dict.fromkeys([*wanted, *stage.families(list(FAMILIES))]):
        kinds, as_of = FAMILIES[family], round(written_at, 3)
        for nodes, within in ((holders, (written_at, lost_at - 0.1)), (outside + lost, (heard_at + 0.2, ends_at))):
            acts += stage.acts(kinds, nodes, within, most=4, durabilities=("quorum", "quorum", "local"), as_of=as_of)
    return Composed(faults, acts, {}, ends_at)


def stale_copy(stage: Stage) -> Composed:
    """A copy of a disk is put back after the others have erased, and swept, what it holds; its node goes on from there.

    In a third of them a whole device is set back, and the node learns that from its peers alone.

    Owed: all but what the node of the copy alone had acknowledged since.
    """
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    copied_at = stage.at + stage.between(0.5, 2.0)
    erased_at = copied_at + stage.between(0.3, 2.0)
    restored_at = erased_at + stage.between(0.5, 6.0)
    faults: list[Fault] = [
        Restore(
            at=round(restored_at, 3),
            node=node,
            copied_at=round(copied_at, 3),
            down_s=stage.between(0.05, 0.5),
            whole=stage.random.random() < 0.33,
        )
    ]
    if stage.random.random() < 0.8:
        cut_at, both = round(restored_at - stage.between(0.0, 0.1), 3), stage.random.random() < 0.7
        faults.append(Cut(at=cut_at, sources=[node], targets=others, for_s=stage.between(1.0, 6.0), both=both))
    acts: list[Act] = []
    for family in dict.fromkeys([stage.random.choice(("erasing", "erasing", *ERASERS)), "erasing"]):
        kinds = FAMILIES[family]
        # The copy's own agents have seen none of it, or they would wait for what it lacks.
        acts += stage.acts(kinds[:1], others, (stage.at, copied_at), most=3)
        acts += stage.acts(kinds[:1], others, (copied_at, erased_at), least=2, most=5)
        acts += stage.acts(ERASERS[family], others, (erased_at, erased_at + 0.5), most=2)
        acts += stage.acts(kinds, [node], (restored_at + 0.1, restored_at + 3.0), least=2, most=5, durabilities=("local",))
        acts += stage.acts(kinds, others, (restored_at + 0.5, restored_at + 4.0), most=2)
    return Composed(faults, acts, {}, 0.0)


def set_back(stage: Stage) -> Composed:
    """A disk is set back to before a prune that all nodes have swept, and its node is asked to save on what was pruned.

    It is cut off, with all clients, from the nodes that would tell it. If the whole device was set back, it saves.

    Owed: all but what the node alone had acknowledged since the copy. Every node can read what was saved.
    """
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    copied_at = round(stage.at + 1.0, 3)
    restored_at = round(copied_at + stage.between(2.0, 5.0), 3)
    whole = stage.random.random() < 0.6
    down_s, cut_s = stage.between(0.05, 0.3), stage.between(1.5, 4.0)
    faults: list[Fault] = [
        Restore(at=restored_at, node=node, copied_at=copied_at, down_s=down_s, whole=whole),
        Cut(at=round(restored_at - 0.05, 3), sources=[node, "client"], targets=others, for_s=cut_s),
    ]
    acts = [
        *stage.acts(SAVES, [node], (stage.at, stage.at + 0.5), least=2, most=4, name=OWN, repeats=0.0),
        *pruning(stage, others, copied_at + 0.1, name=OWN),
        *stage.acts(
            SAVES, [node], (restored_at + down_s, restored_at + cut_s), least=2, most=4, durabilities=("local",), name=OWN
        ),
    ]
    return Composed(faults, acts, {"sync_interval_s": stage.random.choice((0.1, 0.3))}, round(restored_at + cut_s, 3))


def one_by_one(stage: Stage) -> Composed:
    """The nodes that may lose their disks do so one after the other, while the others are down or cut off in turn.

    Owed: whatever a quorum acknowledged, once all is healed.
    """
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for family in stage.families(list(FAMILIES)):
        acts += stage.acts(FAMILIES[family], stage.nodes, (at, at + 8.0), most=12)
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


def begun_apart(stage: Stage) -> Composed:
    """Nodes that cannot hear each other give a document different initial content; then one of them loses its disk.

    Clients keep mirrors of the document, and go on with the nodes that have the other content.

    Owed: what the nodes that keep their disks have acknowledged.
    """
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for name in stage.random.sample("abc", stage.random.choice((1, 2, 2))):
        node = stage.random.choice(stage.losers)
        others = [other for other in stage.nodes if other != node]
        lost_at, heard_at = at + stage.between(0.6, 1.6), at + stage.between(1.0, 2.5)
        ends_at = lost_at + stage.between(1.0, 3.0)
        faults.append(Cut(at=at, sources=[node], targets=others, for_s=round(heard_at - at, 3)))
        faults.append(Wipe(at=round(lost_at, 3), node=node, down_s=stage.between(0.05, 1.0)))
        for nodes, began_s in (([node], 0.4), (others, 1.4)):
            within = (at + 0.05, at + began_s)
            acts += stage.acts(("begin-page",), nodes, within, most=1, durabilities=("local",), name=name, repeats=0.0)
        for nodes, within in (([node], (at + 0.3, lost_at)), ([node, node, *others], (lost_at, ends_at))):
            acts += stage.acts(("edit-page",), nodes, within, most=5, durabilities=("local",), name=name)
        at = round(ends_at + stage.between(0.2, 1.0), 3)
    return Composed(faults, acts, {}, at)


def damaged_unanswered(stage: Stage) -> Composed:
    """Blocks of a node are damaged while its writes wait for copies, and some of the writes are sent again.

    Owed: all but what that node alone had acknowledged. No write that was made is denied.
    """
    node = stage.random.choice(stage.losers)
    kinds: tuple[ActKind, ...] = stage.random.choice((("batch", "save"), ("save", "append"), ("append", "batch")))
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(2, 4)):
        damaged_at = round(at + stage.between(0.3, 0.5), 3)
        down_s, delay_s = stage.between(0.8, 2.0), stage.between(1.0, 3.0)
        faults.append(
            Weather(at=at, for_s=round(damaged_at - at, 3), delay_s=delay_s, sources=stage.nodes, targets=stage.nodes)
        )
        faults.append(CorruptBlock(at=damaged_at, node=node, table=stage.random.choice("LLLLKO"), down_s=down_s))
        # Clients may be with any node by now.
        within = (round(damaged_at - 0.15, 3), round(damaged_at - 0.01, 3))
        acts += stage.acts(kinds, stage.nodes, within, least=6, most=12, durabilities=("quorum",), repeats=0.3)
        at = round(damaged_at + down_s + stage.between(0.5, 1.5), 3)
    return Composed(faults, acts, {}, at)
