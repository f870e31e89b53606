"""The parts that there are."""

from __future__ import annotations

from collections.abc import Callable

from simulation.parts.asking import FAMILY as ASKING
from simulation.parts.asking import Asking
from simulation.parts.attic import FAMILY as ATTIC
from simulation.parts.attic import Attic
from simulation.parts.beginnings import Pages
from simulation.parts.branches import Lines
from simulation.parts.courses import FAMILY as COURSES
from simulation.parts.courses import Courses
from simulation.parts.decrees import Decrees
from simulation.parts.documents import Papers
from simulation.parts.elections import Elections
from simulation.parts.erasing import Erasing
from simulation.parts.evidence import FAMILY as EVIDENCE
from simulation.parts.evidence import Evidence
from simulation.parts.files import Files
from simulation.parts.labels import Labels
from simulation.parts.lists import Lists
from simulation.parts.logs import Logs
from simulation.parts.mapping import Maps
from simulation.parts.memory import Items
from simulation.parts.messages import Messages
from simulation.parts.oddities import FAMILY as ODDITIES
from simulation.parts.oddities import Oddities
from simulation.parts.part import Part
from simulation.parts.rooms import Rooms
from simulation.parts.searches import Searches
from simulation.parts.secrets import FAMILY as SECRETS
from simulation.parts.secrets import Secrets
from simulation.parts.sets import Sets
from simulation.parts.shelf import FAMILY as SHELF
from simulation.parts.shelf import Shelf
from simulation.parts.shifts import Shifts
from simulation.parts.spending import Budgets
from simulation.parts.standing import Standing
from simulation.parts.steps import Steps
from simulation.parts.tenures import Tenures
from simulation.parts.watchers import Watchers
from simulation.parts.worklists import Jobs
from simulation.parts.yjs_clients import Boards
from simulation.plan import ActKind

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
    "decrees": Decrees,
    "tenures": Tenures,
    "rooms": Rooms,
    "shifts": Shifts,
    "elections": Elections,
    "logs": Logs,
    "labels": Labels,
    "lists": Lists,
    "standing": Standing,
    "files": Files,
    SECRETS: Secrets,
    ATTIC: Attic,
    COURSES: Courses,
    SHELF: Shelf,
    ODDITIES: Oddities,
    ASKING: Asking,
}
"""By the name of the family of their objects."""

APART = frozenset({SECRETS, ATTIC, COURSES, SHELF, ODDITIES, ASKING})
"""The families that are drawn by profiles of their own alone: they would alter the plans of all others."""

FAMILIES: dict[ActKind, str] = {kind: family for family, part in PARTS.items() for kind in part().kinds}

KINDS: dict[str, tuple[ActKind, ...]] = {family: part().kinds for family, part in PARTS.items()}
