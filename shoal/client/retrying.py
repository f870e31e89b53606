"""The client's retries: their number, and the pauses between them.

Laws:
- After a `retryable` error, attempts are bounded by `request_timeout_s` on the event loop's
  clock, and the pauses between them grow up to `reconnect_delay_s_max`.
- Attempts after conflicts with concurrent saves are bounded by `save_attempts_max`. Their
  pauses are random, so that not all clients come back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from shoal.client.connection import StoreConnection
from shoal.config import Config
from shoal.errors import ShoalError

_FIRST_DELAY_S = 0.05
_CONTENDED_DELAY_S = 0.002  # The maximum before the second attempt: about as long as a save takes.


def delays(config: Config) -> Iterator[float]:
    """Growing pauses, for as long as `request_timeout_s`."""
    loop = asyncio.get_running_loop()
    delay, ends_at = _FIRST_DELAY_S, loop.time() + config.request_timeout_s
    while loop.time() < ends_at:
        delay = min(delay, config.reconnect_delay_s_max)
        yield delay
        delay *= 2


def contended(connection: StoreConnection) -> Iterator[float]:
    """Growing, random pauses between `save_attempts_max` attempts."""
    bound_s = _CONTENDED_DELAY_S
    for _ in range(connection.config.save_attempts_max - 1):
        yield bound_s * int.from_bytes(connection.entropy(2), "big") / 0xFFFF
        bound_s = min(2 * bound_s, connection.config.reconnect_delay_s_max)


async def paused(pauses: Iterator[float], error: ShoalError) -> bool:
    """Wait before the next attempt, at least as long as the error asks for; False if there is none."""
    delay = next(pauses, None)
    if delay is None:
        return False
    asked = error.detail.get("retry_after_s")
    await asyncio.sleep(max(delay, asked) if isinstance(asked, int | float) else delay)
    return True
