"""What a composite is drawn from, and what it adds to a plan.

Law: acts go through the agents that prefer the nodes which a composite is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from shoal.crdt.dot import END_MS
from shoal.protocol.requests import Durability
from simulation.parts.all import APART, KINDS
from simulation.plan import Act, ActKind, CorruptBlock, Fault, Restore, Wipe

_NATIVE: tuple[ActKind, ...] = ("save", "load", "append", "add", "count", "assign", "edit", "read-document", "read-journal")
FAMILIES: dict[str, tuple[ActKind, ...]] = {
    "": _NATIVE,
    **{family: kinds for family, kinds in KINDS.items() if family not in APART},
}
"""Kinds of acts that have to do with each other; the first of them makes something that the others find."""

ERASERS: dict[str, tuple[ActKind, ...]] = {
    "erasing": ("prune", "delete"),
    "papers": ("delete-paper", "compact-paper"),
    "pages": ("compact-page",),
    "items": ("delete-item",),
    "messages": ("take-message", "consume"),
    "sets": ("remove-from-set",),
    "maps": ("remove-entry", "alter-entry"),
    "lines": ("move-branch",),
    "budgets": ("spend", "release-rights"),
}

OWN = "c"
"""The name of objects that only one composite's acts are about: others delete and save under other durabilities."""

SAVES: tuple[ActKind, ...] = ("save-erasably",)

KEY_WINDOW_S = 20
"""More than a client waits for one answer: less is not promised."""

YEAR_MS = 365 * 24 * 3600 * 1000
NEVER_S = 2 * END_MS // 1000
"""As a window: longer than any clock lasts."""


class Composed(NamedTuple):
    """What a composite adds to a plan, and the second in which it is over."""

    faults: list[Fault]
    acts: list[Act]
    settings: dict[str, int | float | str]
    ends_at: float
    name: str = ""  # Of the composite.


class Stage(NamedTuple):
    """What a composite is drawn from. `losers` may lose their disks; there may be none."""

    random: Random
    nodes: list[str]
    losers: list[str]
    agents: int  # At least one for each node.
    at: float  # Where it begins.

    @property
    def keepers(self) -> list[str]:
        """The nodes that keep their disks, in any order."""
        return self.random.sample(kept := [name for name in self.nodes if name not in self.losers], len(kept))

    def between(self, least: float, most: float) -> float:
        return round(self.random.uniform(least, most), 3)

    def agent(self, nodes: Sequence[str]) -> int:
        """One that prefers one of these nodes."""
        node = self.nodes.index(self.random.choice(list(nodes)))
        return self.random.choice(range(node, self.agents, len(self.nodes)))

    def families(self, wanted: Sequence[str]) -> list[str]:
        """One or two of these."""
        return self.random.sample(list(wanted), self.random.choice((1, 1, 2)))

    def acts(
        self,
        kinds: Sequence[ActKind],
        nodes: Sequence[str],
        within: tuple[float, float],
        *,
        least: int = 1,
        most: int,
        durabilities: Sequence[Durability] = ("local", "quorum"),
        as_of: float | None = None,
        name: str = "a",
        repeats: float = 0.1,
        again_s: float = 0.0,
    ) -> Iterator[Act]:
        """Some acts of these kinds at these nodes; the first kind is as frequent as all others.

        `name`: what they are about. `repeats`: the share of them that is sent twice, the second time after `again_s`.
        """
        for _ in range(self.random.randint(least, most)):
            yield Act(
                at=self.between(*within),
                agent=self.agent(nodes),
                kind=kinds[0] if self.random.random() < 0.5 else self.random.choice(list(kinds)),
                durability=self.random.choice(list(durabilities)),
                repeat=self.random.random() < repeats,
                again_s=again_s,
                as_of=as_of,
                name=name,
            )

    def loss(self, node: str, at: float, copied_at: float) -> Fault:
        """A disk is lost, or set back to what it was at `copied_at`."""
        down_s = self.between(0.05, 0.6)
        match self.random.randrange(5):
            case 0 | 1:
                return Wipe(at=at, node=node, down_s=down_s)
            case 2 | 3:
                return Restore(at=at, node=node, copied_at=copied_at, down_s=down_s)
            case _:
                return CorruptBlock(at=at, node=node, table=self.random.choice("OLVKD"), down_s=down_s)


def pruning(stage: Stage, nodes: Sequence[str], at: float, *, name: str) -> Iterator[Act]:
    """Within a second a thread is loaded, saved anew by one of its agents, and pruned, all at one of these nodes.

    Whatever was saved before is pruned then, unless something else was built on it.
    """
    agent = stage.agent(nodes)
    kinds: tuple[ActKind, ...] = ("load-erasably", *SAVES * stage.random.randint(2, 6), "prune", "prune")
    for nth, kind in enumerate(kinds):
        yield Act(at=round(at + nth * 0.1, 3), agent=agent, kind=kind, durability="local", name=name)
