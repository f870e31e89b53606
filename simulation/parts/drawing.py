"""Draw the acts of the parts, for a plan whose other acts are drawn already.

Law: they are drawn from randomness of their own, and so are each part's: a part that is added
changes nothing else of any seed's plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import sha256
from random import Random

from shoal.protocol.requests import Durability
from simulation.parts.all import APART, KINDS
from simulation.plan import Act

SHARE = 0.25
"""Of the seeds, for each part: most have one or two."""

ACTS_MIN, ACTS_MAX = 8, 60
OWN_ACTS = 30, 120
"""The same of a family that each seed has."""

_DURABILITIES: tuple[tuple[Durability, ...], ...] = (("local",), ("local", "quorum"), ("memory", "local", "quorum", "all"))


def draw_parts(seed: int, profile: str, agents: int, within: tuple[float, float], own: Collection[str] = ()) -> Iterator[Act]:
    """`within`: the first and the last second. `own`: the families that each seed of the profile has.

    Families that are apart are in no other profile.
    """
    for family in KINDS:
        random = Random(int.from_bytes(sha256(f"draw/{profile}/{seed}/{family}".encode()).digest()[:8], "big"))
        if (family in own or random.random() < SHARE) and (family in own or family not in APART):
            yield from _acts(random, family, agents, within, OWN_ACTS if family in own else (ACTS_MIN, ACTS_MAX))


def draw_apart(random: Random, family: str, agents: int, within: tuple[float, float]) -> Iterator[Act]:
    """The acts of a family that is apart, as many as of any other."""
    yield from _acts(random, family, agents, within, (ACTS_MIN, ACTS_MAX))


def _acts(random: Random, family: str, agents: int, within: tuple[float, float], most: tuple[int, int]) -> Iterator[Act]:
    kinds = KINDS[family]
    weights = [10, *(random.choice((1, 3, 10)) for _ in kinds[1:])]  # What comes first gives the others something to work on.
    names = "ab"[: random.choice((1, 1, 2))]
    durabilities = random.choice(_DURABILITIES)
    repeats = random.choice((0.0, 0.2, 0.6))
    bursts = [random.uniform(*within) for _ in range(random.choice((0, 3, 6)))]
    spread_s = random.choice((0.003, 0.1))  # Some meet within a message's time.
    for _ in range(most[0] + int((most[1] - most[0]) * random.random() ** 2)):
        burst = bursts and random.random() < 0.6
        at = min(within[1], random.choice(bursts) + random.expovariate(1 / spread_s)) if burst else random.uniform(*within)
        yield Act(
            at=round(at, 3),
            agent=random.randrange(agents),
            kind=random.choices(kinds, weights=weights)[0],
            name=random.choice(names),
            durability=random.choice(durabilities),
            repeat=random.random() < repeats,
        )
