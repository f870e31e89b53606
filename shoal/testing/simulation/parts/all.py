"""The parts that there are."""

from __future__ import annotations

from collections.abc import Callable

from shoal.testing.simulation.parts.boards import Boards
from shoal.testing.simulation.parts.erasing import Erasing
from shoal.testing.simulation.parts.evidence import FAMILY as EVIDENCE
from shoal.testing.simulation.parts.evidence import Evidence
from shoal.testing.simulation.parts.jobs import Jobs
from shoal.testing.simulation.parts.lines import Lines
from shoal.testing.simulation.parts.mapping import Maps
from shoal.testing.simulation.parts.memory import Items
from shoal.testing.simulation.parts.messages import Messages
from shoal.testing.simulation.parts.pages import Pages
from shoal.testing.simulation.parts.papers import Papers
from shoal.testing.simulation.parts.part import Part
from shoal.testing.simulation.parts.searches import Searches
from shoal.testing.simulation.parts.sharing import Sets
from shoal.testing.simulation.parts.spending import Budgets
from shoal.testing.simulation.parts.steps import Steps
from shoal.testing.simulation.parts.telling import Watchers
from shoal.testing.simulation.plan import ActKind

PARTS: dict[str, Callable[[], Part]] = {
    "steps": Steps,
    "lines": Lines,
    "erasing": Erasing,
    "messages": Messages,
    "items": Items,
    "searches": Searches,
    "papers": Papers,
    "sets": Sets,
    "budgets": Budgets,
    "maps": Maps,
    "watching": Watchers,
    "boards": Boards,
    "pages": Pages,
    EVIDENCE: Evidence,
    "jobs": Jobs,
}
"""By the name of the family of their objects."""

FAMILIES: dict[ActKind, str] = {kind: family for family, part in PARTS.items() for kind in part().kinds}

KINDS: dict[str, tuple[ActKind, ...]] = {family: part().kinds for family, part in PARTS.items()}
