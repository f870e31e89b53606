"""Requests that come twice, while what is remembered of them expires."""

from __future__ import annotations

from simulation.composites.stage import KEY_WINDOW_S, Composed, Stage
from simulation.plan import Act, ActKind, Cut, Fault, Restore

_KINDS: tuple[tuple[ActKind, ...], ...] = (("add", "count"), ("add-entry", "add-entry", "read-map"), ("spend", "grant"))
_SETTINGS: dict[str, int | float | str] = {"key_window_s": KEY_WINDOW_S, "adds_folded_min": 2, "sync_interval_s": 0.3}
_SWEPT_S = KEY_WINDOW_S * 1.4
"""When each node has looked at what has expired (`shoal.node.collection.expiring`)."""


def expired_apart(stage: Stage) -> Composed:
    """Both sides of a cut take the same requests, and meet when the window of their keys is over.

    A node of the larger side may lose its disk at the beginning: it is a learner for as long.

    Owed: everything but what is lost with that disk. Each request counts once.
    """
    losers = [name for name in stage.losers if stage.random.random() < 0.6]
    away = stage.random.choice([name for name in stage.nodes if name not in losers])
    others = [name for name in stage.nodes if name != away]
    cut_s = round(_SWEPT_S + stage.between(1.0, 8.0), 3)
    faults: list[Fault] = [Cut(at=stage.at, sources=[away], targets=others, for_s=cut_s)]
    faults += [
        stage.loss(name, round(stage.at + stage.between(1.0, 3.0), 3), round(stage.at + stage.between(0.5, 1.0), 3))
        for name in losers
    ]
    acts: list[Act] = []
    for kinds in stage.random.sample(_KINDS, stage.random.choice((1, 2, 2))):
        acts += stage.acts(kinds, stage.nodes, (stage.at + 0.05, stage.at + 0.9), least=6, most=16, repeats=0.7)
        acts += stage.acts(kinds, stage.nodes, (stage.at + cut_s, stage.at + cut_s + 2.0), most=3)
    return Composed(faults, acts, _SETTINGS, round(stage.at + cut_s + _SWEPT_S / 2, 3))


def asked_late(stage: Stage) -> Composed:
    """A whole device is set back to before some requests, and its node, cut off with all clients, gets these again.

    Owed: all but what the node alone had acknowledged since the copy. Each request counts once.
    """
    node = stage.random.choice(stage.losers)
    others = [name for name in stage.nodes if name != node]
    copied_at = round(stage.at + 0.3, 3)
    restored_at = round(copied_at + stage.between(3.0, 6.0), 3)
    down_s, cut_s = stage.between(0.05, 0.3), stage.between(2.0, 4.0)
    faults: list[Fault] = [
        Restore(at=restored_at, node=node, copied_at=copied_at, down_s=down_s, whole=True),
        Cut(at=round(restored_at - 0.05, 3), sources=[node, "client"], targets=others, for_s=cut_s),
    ]
    acts: list[Act] = []
    for kinds in stage.random.sample(_KINDS, stage.random.choice((1, 2))):
        acts += stage.acts(kinds, stage.nodes, (stage.at, copied_at), most=3)
        acts += stage.acts(
            kinds[:1],
            others,
            (copied_at + 0.1, copied_at + 0.5),
            least=2,
            most=6,
            repeats=0.8,
            again_s=round(restored_at + down_s - copied_at, 3),
        )
    return Composed(faults, acts, _SETTINGS, round(restored_at + cut_s, 3))
