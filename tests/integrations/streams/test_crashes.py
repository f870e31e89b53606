"""The node that writes a stream is killed 50 times in the middle of appends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.end_to_end.streams import killed_again_and_again

KILLS = 50


async def test_killed_writers_lose_double_and_reorder_nothing(tmp_path: Path, record_property: Any) -> None:
    await killed_again_and_again(tmp_path, faults=KILLS, seed=18)
    record_property("kills", KILLS)
