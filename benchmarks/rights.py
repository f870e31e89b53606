"""How often a spend is refused although rights are left, once one node of a cluster is dead.

    python -m benchmarks.rights            # docs/NATIVE.md has its figures

Real nodes over memory storage, in virtual time and from seeds: what it prints depends on the program alone. Twelve clients
spend a budget of 1,000 in amounts of 1 to 5 until a given part of it is left; then a random node dies, its clients go on
with the next in their order, and all together try to spend half of what was left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from shoal.errors import BudgetExhausted, RightsElsewhere
from shoal.kinds.budget.handle import Budget
from shoal.testing.machines import run
from shoal.transport.dialling import shuffled
from simulation.world.fleet import Fleet

GRANTED = 1000
CLIENTS = 12
LEFT = (1.0, 0.5, 0.2, 0.05)  # Of the budget, when the node dies.
SEEDS = range(20)
NEVER_S = 1e9


class Case(NamedTuple):
    names: str
    left: float
    ahead: bool  # Clients have orders of their own, and rights are spread ahead of need.


class Outcome(NamedTuple):
    tried: int
    refused: int  # Although rights were left.


async def one(case: Case, seed: int, *, tick_s: float = 0.005) -> Outcome:
    random = Random(seed)
    settings: dict[str, float] = {} if case.ahead else {"rights_spread_s": NEVER_S}
    async with Fleet(case.names, seed=1000 * seed, rights_wait_s=0.2, tick_s=tick_s, **settings) as fleet:
        orders = [shuffled(case.names, random.randbytes) if case.ahead else list(case.names) for _ in range(CLIENTS)]
        await _budget(fleet, orders[0]).grant(GRANTED)
        await fleet.converged()
        await asyncio.sleep(1.0)
        left = GRANTED
        while left > case.left * GRANTED:
            amount = min(random.randint(1, 5), left)
            await _budget(fleet, random.choice(orders)).spend(amount)
            left -= amount
            await asyncio.sleep(random.uniform(0.0, 0.05))
        await fleet.crash(random.choice(case.names))
        return await _go_on(fleet, orders, half=left // 2, random=random)


async def _go_on(fleet: Fleet, orders: Sequence[Sequence[str]], *, half: int, random: Random) -> Outcome:
    wanted = tried = refused = 0
    while wanted < half:
        amount = min(random.randint(1, 5), half - wanted)
        wanted += amount
        tried += 1
        try:
            await _budget(fleet, random.choice(orders)).spend(amount)
        except RightsElsewhere:
            refused += 1
        except BudgetExhausted:
            raise AssertionError("half of it is left") from None
        await asyncio.sleep(random.uniform(0.0, 0.05))
    return Outcome(tried, refused)


def _budget(fleet: Fleet, order: Sequence[str]) -> Budget:
    """At the first node in a client's order that lives."""
    name = next(name for name in order if name in fleet.members)
    return fleet[name].store().space("crew").budget("tokens")


def share_refused(case: Case) -> float:
    outcomes = [run(one(case, seed)) for seed in SEEDS]
    return sum(outcome.refused for outcome in outcomes) / sum(outcome.tried for outcome in outcomes)


def main() -> None:
    print(f"{'nodes':>5} {'left':>5} {'on need':>9} {'ahead':>9}   spends refused although rights were left")
    for names in ("abc", "abcde"):
        for left in LEFT:
            before, after = (share_refused(Case(names, left, ahead)) for ahead in (False, True))
            print(f"{len(names):>5} {left:>5.0%} {before:>9.1%} {after:>9.1%}", flush=True)


if __name__ == "__main__":
    main()
