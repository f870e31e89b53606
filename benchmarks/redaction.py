"""How much longer a durable save takes in a space with rules of redaction: `python -m benchmarks.redaction [PAIRS]`.

The saves of each pair follow one another: one in a space without rules, one in a space whose rules replace credentials.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from random import Random
from statistics import median
from time import perf_counter
from typing import Any
from uuid import UUID

import shoal

SECRET = "sk-ant-" + "Zq7" * 12
LINE = "The quick brown fox jumps over the lazy dog and reads what there is at http://example.org/path?x=1. "


def _messages(random: Random, ending: str) -> list[dict[str, str]]:
    return [{"content": LINE * 4 + ending, "id": str(UUID(int=random.getrandbits(128)))} for _ in range(50)]


async def measure(pairs: int) -> None:
    random = Random(1)
    kinds: dict[str, Any] = {
        "1 KB": lambda: (LINE * 10)[:1000],
        "50 messages": lambda: _messages(random, ""),
        "50 messages, 50 keys": lambda: _messages(random, SECRET),
    }
    with tempfile.TemporaryDirectory() as directory:
        async with shoal.open(directory) as store:
            await store.space("ruled").redaction.set(credentials=True)
            for name, make in kinds.items():
                took: dict[str, list[float]] = {"plain": [], "ruled": []}
                for nth in range(pairs):
                    state = {"messages": make(), "nth": nth}
                    for space in ("plain", "ruled") if nth % 2 else ("ruled", "plain"):
                        began = perf_counter()
                        await store.space(space).thread(name).save(state, overwrite=True)
                        took[space].append(1000 * (perf_counter() - began))
                more = median(ruled - plain for plain, ruled in zip(took["plain"], took["ruled"], strict=True))
                print(f"{name}: {median(took['plain']):.2f} ms, with rules {median(took['ruled']):.2f} ms, +{more:.2f} ms")


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
