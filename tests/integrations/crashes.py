"""An agent that is killed again and again, and goes on at another node each time.

Three nodes are served, each in a process of its own. A worker is a program that is given their addresses, the one to use
first in front, and that prints `acknowledged N` when its framework has told it that turn N is stored. It ends by itself.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from chaos.ports import free_ports
from tests.cli.conftest import clean_environment, served
from tests.support import forked

NODES = 3
ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[list[str]]:
    """Three nodes, and their addresses."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(NODES)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(served(directory / str(nth), "--listen", address, "--join", ",".join(addresses)))[1]
            for nth, address in enumerate(addresses)
        ]


async def killed_again_and_again(
    worker: str, urls: Sequence[str], *arguments: str, kills: int, seed: int, imports: str = ""
) -> list[int]:
    """Run the module `worker`, kill it `kills` times in the middle of its work, and let it end.

    It is forked from a process that has imported `imports`. Returns the turns that it was told are stored.
    """
    chance = random.Random(seed)
    acknowledged: list[int] = []
    for life in range(kills + 1):
        first = [*urls[life % NODES :], *urls[: life % NODES]]  # Another node each time.
        process = await forked.create_subprocess_exec(
            *(sys.executable, "-m", worker, ",".join(first), *arguments),
            imports=imports,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        left = chance.randrange(1, 3)  # Lines until it is killed, a moment later.
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # It died while it wrote this.
            word, number = line.decode().split()
            if word == "acknowledged":
                acknowledged.append(int(number))
            left -= 1
            if left == 0 and life < kills:
                await asyncio.sleep(chance.random() * 0.03)
                process.kill()
        errors = (await process.stderr.read()).decode()
        code = await process.wait()
        assert code == (-9 if life < kills else 0), f"life {life} of seed {seed} ended with {code}: {errors[-2000:]}"
    return acknowledged
