"""When the client tries a call again, and for how long: after an error that is `retryable`.

Law: attempts are bounded by `request_timeout_s` on the event loop's clock, and
the pauses between them grow up to `reconnect_delay_s_max`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from shoal.config import Config
from shoal.errors import ShoalError

_FIRST_DELAY_S = 0.05


def delays(config: Config) -> Iterator[float]:
    """Growing pauses, for as long as `request_timeout_s`."""
    loop = asyncio.get_running_loop()
    delay, ends_at = _FIRST_DELAY_S, loop.time() + config.request_timeout_s
    while loop.time() < ends_at:
        delay = min(delay, config.reconnect_delay_s_max)
        yield delay
        delay *= 2


async def paused(pauses: Iterator[float], error: ShoalError) -> bool:
    """Wait for the next attempt; False if there is none."""
    delay = next(pauses, None)
    if delay is None:
        return False
    asked = error.detail.get("retry_after_s")
    await asyncio.sleep(max(delay, asked) if isinstance(asked, int | float) else delay)
    return True
