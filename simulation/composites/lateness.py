"""What a node does not hear in time: of a deletion, and that another node carries out the same request."""

from __future__ import annotations

from simulation.composites.stage import OWN, SAVES, Composed, Stage, pruning
from simulation.plan import Act, ActKind, Cut, Fault, Weather

_REMOVALS: tuple[tuple[ActKind, ActKind], ...] = (
    ("delete", "save-erasably"),
    ("delete-paper", "patch-paper"),
    ("delete-item", "put-item"),
)
"""Kinds of acts that remove an object, and that make it."""


def deleted_unheard(stage: Stage) -> Composed:
    """A thread is deleted with copies; its author's node hears late of it, and saves with copies meanwhile.

    Owed: everything. A save that copies acknowledge after the deletion is there.
    """
    author, deleter, *_ = stage.random.sample(stage.nodes, len(stage.nodes))
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(2, 4)):
        acts += stage.acts(("save-erasably",), [author], (at, at + 0.3), most=2, durabilities=("quorum",), name=OWN)
        deleted_at = round(at + stage.between(0.5, 0.8), 3)
        for_s = stage.between(0.6, 2.0)
        loss, delay_s = stage.random.choice(((1.0, 0.0), (0.0, 0.5), (0.0, 1.5)))
        faults.append(
            Weather(
                at=round(deleted_at - 0.02, 3), for_s=for_s, loss=loss, delay_s=delay_s, sources=[deleter], targets=[author]
            )
        )
        acts += stage.acts(
            ("delete",), [deleter], (deleted_at, deleted_at + 0.02), most=1, durabilities=("quorum",), name=OWN, repeats=0.0
        )
        acts += stage.acts(
            ("save-erasably",),
            [author],
            (deleted_at + 0.04, deleted_at + 0.3),
            most=3,
            durabilities=("quorum",),
            name=OWN,
            repeats=0.0,
        )
        at = round(deleted_at + for_s + stage.between(0.2, 1.0), 3)
    return Composed(faults, acts, {}, at)


def pruned_unheard(stage: Stage) -> Composed:
    """A thread is pruned while its author's node is cut off, where the author saves on what is pruned.

    Afterwards the others may hear that node say what it holds, and not get what it has saved.

    Owed: everything. What a save builds on is swept nowhere before that save is there.
    """
    author, *others = stage.random.sample(stage.nodes, len(stage.nodes))
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(1, 3)):
        acts += stage.acts(SAVES, [author], (at, at + 0.4), least=2, most=3, name=OWN, repeats=0.0)
        cut_at = round(at + stage.between(0.5, 0.7), 3)
        cut_s = stage.between(1.2, 3.0)
        faults.append(Cut(at=cut_at, sources=[author], targets=others, for_s=cut_s))
        acts += pruning(stage, others, cut_at + 0.1, name=OWN)
        acts += stage.acts(SAVES, [author], (cut_at + 0.1, cut_at + cut_s), most=3, durabilities=("local",), name=OWN)
        at = round(cut_at + cut_s, 3)
        if stage.random.random() < 0.5:
            for_s = stage.between(1.0, 4.0)
            faults.append(
                Weather(at=round(at - 0.01, 3), for_s=for_s, loss=1.0, sources=[author], targets=others, over_bytes=400)
            )
            at = round(at + for_s, 3)
        at = round(at + stage.between(0.5, 1.5), 3)
    return Composed(faults, acts, {"sync_interval_s": stage.random.choice((0.1, 0.3))}, at)


def removed_late(stage: Stage) -> Composed:
    """What clients send to a node is held up. A removal reaches it when another node has answered it, and the object was made.

    Owed: everything that was written after the removal was answered.
    """
    node, *others = stage.random.sample(stage.nodes, len(stage.nodes))
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for name in stage.random.sample("defgh", stage.random.randint(2, 5)):
        remove, make = stage.random.choice(_REMOVALS)
        for_s = stage.between(1.7, 2.6)  # The client gives its link up before this, and the node often does not.
        faults.append(Cut(at=at, sources=["client"], targets=[node], for_s=for_s, both=stage.random.random() < 0.5))
        acts += stage.acts((remove,), [node], (at + 0.05, at + 0.3), most=2, durabilities=("local",), name=name, repeats=0.0)
        acts += stage.acts((make,), others, (at + 0.8, at + for_s), least=6, most=10, name=name, repeats=0.0)
        at = round(at + for_s + stage.between(0.5, 1.5), 3)
    return Composed(faults, acts, {}, at)


def edited_twice(stage: Stage) -> Composed:
    """Two nodes do not hear each other for moments, in each of which edits are sent to both.

    Owed: everything. Each edit is there once.
    """
    faults: list[Fault] = []
    at = stage.at
    acts = list(stage.acts(("edit-page",), stage.nodes, (at, at + 0.5), least=4, most=8, name=OWN, repeats=0.0))
    at = round(at + 1.0, 3)
    for _ in range(stage.random.randint(3, 6)):
        apart = stage.random.choice(stage.nodes)
        for_s = stage.between(0.2, 1.0)
        faults.append(Cut(at=at, sources=[apart], targets=[name for name in stage.nodes if name != apart], for_s=for_s))
        acts += stage.acts(
            ("edit-page",),
            stage.nodes,
            (at + 0.05, at + for_s),
            least=2,
            most=6,
            durabilities=("local",),
            name=OWN,
            repeats=0.8,
        )
        at = round(at + for_s + stage.between(0.3, 1.5), 3)
    return Composed(faults, acts, {}, at)
