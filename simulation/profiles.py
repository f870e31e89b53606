"""How much of which trouble the plans of a profile have.

Law: a seed of a mixture gives the plan that it gives in one of the profiles which are mixed.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.errors import InvalidValue
from simulation.parts.asking import FAMILY as ASKING
from simulation.parts.courses import FAMILY as COURSES
from simulation.parts.oddities import FAMILY as ODDITIES
from simulation.parts.secrets import FAMILY as SECRETS


class Profile(NamedTuple):
    kinds: float  # The share of the fault classes that a seed has.
    faults_max: int  # Of one class in one plan.
    acts_max: int = 150
    composed: float = 0.0  # The share of the seeds that have composites, one or two.
    operated: bool = False  # Whether operators change the members besides.
    called: bool = False  # Whether each node is called at every instant of its life, which begins or begins anew often.
    escaped: bool = False  # Whether nodes lose what they have pushed besides.
    tiered: bool = False  # Whether threads go to a bucket, which fails.
    shelved: bool = False  # Whether files stay there.
    ships: bool = False  # Whether the cluster is backed up, to a bucket that fails.
    laid: bool = False  # Whether files are put, and read, whose chunks are laid down beside the rows, while nodes crash.
    told: bool = False  # Whether points of budgets' courses come fast, and are few.
    own: frozenset[str] = frozenset()  # Families of acts that each seed has; most are in no other profile.


PROFILES = {
    "default": Profile(kinds=0.3, faults_max=4, composed=0.3),
    "calm": Profile(kinds=0.0, faults_max=0),
    "storm": Profile(kinds=0.7, faults_max=8, acts_max=300, composed=0.5),
    "composed": Profile(kinds=0.05, faults_max=2, acts_max=60, composed=1.0),
    "members": Profile(kinds=0.05, faults_max=2, acts_max=60, composed=1.0, operated=True),
    "redacted": Profile(kinds=0.3, faults_max=4, acts_max=40, own=frozenset({SECRETS})),
    "told": Profile(kinds=0.15, faults_max=2, acts_max=20, told=True, own=frozenset({COURSES})),
    "odd": Profile(kinds=0.15, faults_max=2, acts_max=20, own=frozenset({ODDITIES})),
    "asking": Profile(kinds=0.3, faults_max=3, acts_max=20, composed=0.3, own=frozenset({ASKING})),
    "laid": Profile(kinds=0.2, faults_max=3, acts_max=20, laid=True),
    "shipped": Profile(kinds=0.2, faults_max=3, acts_max=100, ships=True),
    "lives": Profile(kinds=0.05, faults_max=2, acts_max=40, composed=1.0, called=True),
    "escapes": Profile(kinds=0.05, faults_max=2, acts_max=40, composed=1.0, escaped=True),
    "cold": Profile(kinds=0.2, faults_max=2, acts_max=24, composed=0.3, tiered=True),
    "cold-members": Profile(kinds=0.05, faults_max=2, acts_max=24, composed=1.0, operated=True, tiered=True),
    "shelved": Profile(kinds=0.2, faults_max=2, acts_max=24, composed=0.3, tiered=True, shelved=True),
    "cold-shipped": Profile(kinds=0.1, faults_max=2, acts_max=24, tiered=True, ships=True),
}

MIXTURES = {"mixed": (*("default",) * 7, "members"), "tiered": (*("cold",) * 6, "cold-members", "cold-shipped")}
"""By the seed, in turn."""

NAMES = (*PROFILES, *MIXTURES)


def profile_of(name: str, seed: int) -> tuple[str, Profile]:
    """The profile by which a seed is drawn, and its own name.

    Raises:
        InvalidValue: there is none of that name.
    """
    mixed = MIXTURES.get(name, (name,))
    found = mixed[seed % len(mixed)]
    if found not in PROFILES:
        raise InvalidValue(f"there is no profile {name!r}; there are {', '.join(NAMES)}. Nothing was run.")
    return found, PROFILES[found]
