"""All mutants, by name."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import (
    branching,
    claims,
    clocks,
    compacting,
    comparing,
    consensus,
    copies,
    deleting,
    delivery,
    durability,
    effects,
    erasing,
    expiring,
    hidden,
    indexes,
    lateness,
    learners,
    leases,
    links,
    marks,
    members,
    natives,
    objects,
    origins,
    queues,
    retiring,
    retries,
    scrubbing,
    sessions,
    snapshots,
    standing,
    sweeping,
    truncating,
    watching,
    yjs,
)
from tests.mutants.mutant import Mutant

MODULES = (
    durability,
    delivery,
    copies,
    retiring,
    retries,
    scrubbing,
    sessions,
    snapshots,
    standing,
    sweeping,
    truncating,
    expiring,
    objects,
    effects,
    branching,
    erasing,
    expiring,
    hidden,
    compacting,
    queues,
    indexes,
    lateness,
    learners,
    leases,
    claims,
    comparing,
    links,
    marks,
    members,
    natives,
    origins,
    retiring,
    watching,
    yjs,
    consensus,
    clocks,
    deleting,
)

ALL: dict[str, Mutant] = {mutant.name: mutant for module in MODULES for mutant in module.MUTANTS}

PLANS = Path(__file__).parent / "plans"
"""By name, the plan that found each: as small as it could be made."""
