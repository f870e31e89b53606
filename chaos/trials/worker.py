"""The process that a kill trial kills: agents on one embedded node, at work until then.

    python -m chaos.trials.worker DIRECTORY SEED FIRST_NUMBER AGENTS

Law: every event is on its standard output, a pipe, before anything follows from
it; the pipe outlives the process. It ends by being killed, or when nobody reads
the pipe any more.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path
from random import Random

import uvloop

from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from simulation.judging.history import Event, History, Opening, to_line
from simulation.workload.random_agents import note_origin, working


def main(arguments: list[str]) -> None:
    directory, seed, first, agents = arguments
    uvloop.run(_work(Path(directory), Random(int(seed)), first=int(first), agents=int(agents)))


async def _work(directory: Path, random: Random, *, first: int, agents: int) -> None:
    say(Opening())
    node = await open_node(directory, config=Config(), environment=system_environment())
    history = History()

    def note(event: Event) -> None:
        say(event)
        history.note(event)

    async with working(node.session(), agents=agents, numbers=count(first), note=note, random=random):
        await history.grown(1)
        await note_origin(node.session(), note)
        await asyncio.Event().wait()


def say(event: Event) -> None:
    """One write, unbuffered: it blocks when the pipe is full, which costs speed and nothing else."""
    sys.stdout.buffer.write(to_line(event))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
