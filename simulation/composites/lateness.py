"""What a node does not hear in time: of a deletion, and that another node carries out the same request."""

from __future__ import annotations

from simulation.composites.stage import OWN, SAVES, Composed, Stage, pruning
from simulation.plan import Act, ActKind, CrashAt, CrashPoint, Cut, Fault, Weather

_REMOVALS: tuple[tuple[ActKind, ActKind], ...] = (
    ("delete", "save-erasably"),
    ("delete-paper", "patch-paper"),
    ("delete-item", "put-item"),
)
"""Kinds of acts that remove an object, and that make it."""


_UNHEARD: tuple[CrashPoint, ...] = ("appended", "synced")


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


def erased_unheard(stage: Stage) -> Composed:
    """Events are erased while a node is cut off, to which some of their appends are sent as well.

    Owed: everything. No value comes back when that node is heard again.
    """
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(2, 4)):
        late = stage.random.choice(stage.nodes)
        others = [name for name in stage.nodes if name != late]
        for_s = stage.between(1.0, 2.5)
        faults.append(Cut(at=at, sources=[late], targets=others, for_s=for_s))
        written = (at + 0.05, at + 0.4)
        acts += stage.acts(("write-log",), stage.nodes, written, least=4, most=8, durabilities=("local",), repeats=0.8)
        acts += stage.acts(("erase-log",), stage.nodes, (at + 0.5, at + for_s), least=3, most=6, durabilities=("local",))
        acts += stage.acts(("read-log", "trim-log"), stage.nodes, (at + 0.5, at + for_s + 1.0), most=3)
        at = round(at + for_s + stage.between(0.3, 1.5), 3)
    return Composed(faults, acts, {}, at)


def overtaken(stage: Stage) -> Composed:
    """A node dies, or is cut off, with a swap of a register that nobody has seen; others compare and set it meanwhile.

    A second node may do the same before the first is back. Owed: everything. What was not acknowledged does not come back
    over what was made, or told, without it.
    """
    late, other, *rest = stage.random.sample(stage.nodes, len(stage.nodes))
    both = rest and stage.random.random() < 0.6
    away_s = stage.between(4.0, 6.0)
    back_at = round(stage.at + away_s, 3)
    faults = [_unheard(stage, late, stage.at, away_s)]
    acts: list[Act] = []
    acts += stage.acts(("elect",), stage.nodes, (stage.at - 1.0, stage.at - 0.4), least=2, most=4, name=OWN)
    acts += stage.acts(("elect",), [late], (stage.at - 0.1, stage.at + 0.1), least=2, most=6, name=OWN, repeats=0.3)
    kinds: tuple[ActKind, ...] = stage.random.choice((("elect",), ("ask-who-leads",), ("elect", "ask-who-leads")))
    ends_at = back_at
    if both:
        second_at = round(stage.at + stage.between(2.2, 3.0), 3)
        faults.append(_unheard(stage, other, second_at, back_at + 4.0 - second_at))
        acts += stage.acts(("elect",), [other], (second_at - 0.1, second_at + 0.1), least=2, most=6, name=OWN)
        acts += stage.acts(kinds, [late, *rest], (back_at + 0.5, back_at + 3.8), most=5, name=OWN)
        ends_at = round(back_at + 4.0, 3)
    else:
        acts += stage.acts(kinds, [other, *rest], (stage.at + 2.5, back_at), most=5, name=OWN)
    acts += stage.acts(("ask-who-leads", "elect"), stage.nodes, (ends_at, ends_at + 3.0), most=5, name=OWN)
    return Composed(faults, acts, {}, ends_at)


def _unheard(stage: Stage, node: str, at: float, away_s: float) -> Fault:
    """From about then a node is away, with whatever it has written and not sent."""
    if stage.random.random() < 0.6:
        point, nth = stage.random.choice(_UNHEARD), stage.random.randint(1, 8)
        return CrashAt(at=at, node=node, point=point, nth=nth, down_s=round(away_s, 3), keep=None)
    others = [name for name in stage.nodes if name != node]
    cut_at = round(at + stage.between(0.0, 0.15), 3)
    return Cut(at=cut_at, sources=[node], targets=others, both=True, for_s=round(away_s, 3))
