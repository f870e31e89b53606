"""Real agents' trajectories, replayed as checkpoints: every message is one, and every one is loaded and compared.

They are no part of the project: they lie in `../shared/data` beside it, or where `SHOAL_BENCH_DATA` says.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.client.store import Space

VARIABLE = "SHOAL_BENCH_DATA"
DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"

Message = dict[str, Any]


class Replayed(NamedTuple):
    checkpoints: list[str]  # Their ids, in order; the n-th holds the first n + 1 messages.
    raw_bytes: int  # Of the messages as JSON.


def directory() -> Path | None:
    """Where the trajectories are; None if they are not there."""
    found = Path(os.environ.get(VARIABLE, DEFAULT)) / "trajectories"
    return found if found.is_dir() else None


def read(source: Path) -> Iterator[tuple[str, list[Message]]]:
    """Each trajectory of a directory, with a name that is its own."""
    for path in sorted(source.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for number, line in enumerate(lines):
                yield f"{path.name.removesuffix('.jsonl.gz')}-{number}", json.loads(line)["messages"]


async def replay(space: Space, name: str, messages: Sequence[Message], *, whole: bool) -> Replayed:
    """Save a checkpoint for each message, as a whole list or as an append, and load it back.

    Raises:
        AssertionError: it is not what was saved.
    """
    thread = space.thread(name)
    ids, raw_bytes = [], 0
    for number, message in enumerate(messages):
        state = {"messages": messages[: number + 1], "step": number}
        if whole:
            saved = await thread.save(state)
        else:
            saved = await thread.update({"step": number}, append={"messages": [message]})
        loaded = await thread.load(saved.id)
        assert loaded.state == state, f"{name}: step {number}"
        ids.append(saved.id)
        raw_bytes += len(json.dumps(message))
    return Replayed(ids, raw_bytes)


async def check(space: Space, name: str, messages: Sequence[Message], checkpoints: Sequence[str]) -> None:
    """Load every checkpoint again, the newest first.

    Raises:
        AssertionError: one is not what was saved.
    """
    thread = space.thread(name)
    for number in reversed(range(len(messages))):
        state = (await thread.load(checkpoints[number])).state
        assert state == {"messages": messages[: number + 1], "step": number}, f"{name}: step {number}"
