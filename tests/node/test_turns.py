"""Work beside its caller ends with the part of the node that began it."""

from __future__ import annotations

import asyncio

from shoal.node.turns import Background


async def test_a_part_that_is_closed_ends_its_work_and_waits_for_that() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("whole")

    part = Background()
    part.start(work())
    await asyncio.sleep(0)
    await part.close()
    assert ended == ["whole"]
