"""In the virtual loop, time never stands still for somebody who waits for a time."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from shoal.testing.machines import run


def test_a_wait_of_the_smallest_time_ends() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def busy() -> None:
            loop.call_soon(busy)

        await asyncio.sleep(20.002)
        ends_at = math.nextafter(loop.time(), math.inf)
        busy()  # Something is ready in each turn, so that the loop never waits for the timer alone.
        while (left_s := ends_at - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await asyncio.Event().wait()

    run(main(), steps_max=1_000)
