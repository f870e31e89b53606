"""Draw composites: faults that follow each other in an order that means something, and the acts that make them matter.

Laws:
- A composite is drawn as single events, with times and nodes: each can be left out.
- Disks are lost only on the nodes that may lose theirs, a minority of all. So whatever
  `Losses` does not excuse is owed after any composite; each says what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from simulation.composites.absences import black_hole, met_late, one_way, outage
from simulation.composites.disks import begun_apart, damaged_unanswered, forgotten, one_by_one, set_back, stale_copy
from simulation.composites.escapes import escaped
from simulation.composites.expiry import asked_late, expired_apart
from simulation.composites.identities import cloned, misrouted, relisted
from simulation.composites.lateness import (
    deleted_unheard,
    edited_twice,
    erased_unheard,
    overtaken,
    pruned_unheard,
    removed_late,
)
from simulation.composites.lives import born_apart, wiped
from simulation.composites.local import clock_off, failed_sync, years_off
from simulation.composites.members import disowned, left, replaced
from simulation.composites.openings import reopened
from simulation.composites.stage import Composed, Stage

Composite = Callable[[Stage], Composed]

_OF_TWO: tuple[Composite, ...] = (
    one_way,
    outage,
    years_off,
    clock_off,
    failed_sync,
    met_late,
    edited_twice,
    expired_apart,
    cloned,
    misrouted,
    reopened,
)
"""Those that two nodes can have, of which none may lose its disk."""

COMPOSITES: tuple[Composite, ...] = (
    *(forgotten, forgotten, stale_copy, stale_copy, set_back, one_by_one, begun_apart),
    *_OF_TWO,
    *(
        black_hole,
        relisted,
        deleted_unheard,
        erased_unheard,
        pruned_unheard,
        removed_late,
        damaged_unanswered,
        asked_late,
        overtaken,
    ),
)


OF_MEMBERS: tuple[Composite, ...] = (left, replaced, disowned)
"""Those in which operators change the members: in plans of a profile of their own."""


OF_ESCAPES: tuple[Composite, ...] = (escaped,)
"""Those in which a node loses what it has pushed: in plans of a profile of their own."""


OF_LIVES: tuple[Composite, ...] = (born_apart, wiped, wiped, forgotten, one_by_one, left, left, replaced, disowned)
"""Those in which directories begin, and begin anew: in plans in which each node is called at every instant."""


def compose(
    random: Random,
    nodes: Sequence[str],
    losers: Sequence[str],
    agents: int,
    at: tuple[float, float],
    composites: Sequence[Composite] = COMPOSITES,
) -> Composed:
    """One composite of these that begins `at` some time between these; nothing for a node without peers."""
    if len(nodes) < 2:
        return Composed([], [], {}, 0.0)
    losers = losers or random.sample(list(nodes), (len(nodes) - 1) // 2)
    composite = random.choice(composites if losers else _OF_TWO)
    composed = composite(Stage(random, list(nodes), list(losers), agents, round(random.uniform(*at), 3)))
    ends_at = max(event.at for event in (*composed.faults, *composed.acts))
    return composed._replace(ends_at=max(ends_at, composed.ends_at), name=composite.__name__)
