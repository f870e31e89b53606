"""What a node does not hear in time: of a deletion, and that another node carries out the same request."""

from __future__ import annotations

from simulation.composites.stage import Composed, Stage
from simulation.plan import Act, Cut, Fault, Weather

_OWN = "c"
"""The name of the objects that only these acts are about: others delete and save under other durabilities."""


def deleted_unheard(stage: Stage) -> Composed:
    """A thread is deleted with copies; its author's node hears late of it, and saves with copies meanwhile.

    Owed: everything. A save that copies acknowledge after the deletion is there.
    """
    author, deleter, *_ = stage.random.sample(stage.nodes, len(stage.nodes))
    faults: list[Fault] = []
    acts: list[Act] = []
    at = stage.at
    for _ in range(stage.random.randint(2, 4)):
        acts += stage.acts(("save-erasably",), [author], (at, at + 0.3), most=2, durabilities=("quorum",), name=_OWN)
        deleted_at = round(at + stage.between(0.5, 0.8), 3)
        for_s = stage.between(0.6, 2.0)
        loss, delay_s = stage.random.choice(((1.0, 0.0), (0.0, 0.5), (0.0, 1.5)))
        faults.append(
            Weather(
                at=round(deleted_at - 0.02, 3), for_s=for_s, loss=loss, delay_s=delay_s, sources=[deleter], targets=[author]
            )
        )
        acts += stage.acts(
            ("delete",), [deleter], (deleted_at, deleted_at + 0.02), most=1, durabilities=("quorum",), name=_OWN, repeats=0.0
        )
        acts += stage.acts(
            ("save-erasably",),
            [author],
            (deleted_at + 0.04, deleted_at + 0.3),
            most=3,
            durabilities=("quorum",),
            name=_OWN,
            repeats=0.0,
        )
        at = round(deleted_at + for_s + stage.between(0.2, 1.0), 3)
    return Composed(faults, acts, {}, at)


def edited_twice(stage: Stage) -> Composed:
    """Two nodes do not hear each other for moments, in each of which edits are sent to both.

    Owed: everything. Each edit is there once.
    """
    faults: list[Fault] = []
    at = stage.at
    acts = list(stage.acts(("edit-page",), stage.nodes, (at, at + 0.5), least=4, most=8, name=_OWN, repeats=0.0))
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
            name=_OWN,
            repeats=0.8,
        )
        at = round(at + for_s + stage.between(0.3, 1.5), 3)
    return Composed(faults, acts, {}, at)
