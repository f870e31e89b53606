"""Have a part's document compacted, all of it or what is a second old: it must stay what it is."""

from __future__ import annotations

from random import Random

from shoal.errors import NotFound, ShoalError
from shoal.protocol.requests import Compact
from simulation.parts.part import Bench
from simulation.plan import Act
from simulation.workload.random_agents import SPACE

_OLD_MS = 1000


async def compact(bench: Bench, act: Act, random: Random) -> None:
    request = Compact(SPACE, bench.name, random.choice((0, 0, _OLD_MS)))

    async def send() -> None:
        await bench.space._connection.write(request, key=None, durability=act.durability)

    try:
        await bench.send(act, random, send, of=Compact)
    except NotFound:
        bench.did("find nothing to compact")
        return
    except ShoalError as error:
        bench.refused(error)
        raise
    bench.did("compact")
