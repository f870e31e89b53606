"""What clients ask a node in tests of links and sessions, with which settings, and what it answers."""

from __future__ import annotations

import asyncio

from shoal.config import Config
from shoal.protocol.frames import CallFrame, encode_reply
from shoal.protocol.requests import Add, Added, CounterValue, ReadCounter

CONFIG = Config(request_timeout_s=20.0, reconnect_delay_s_max=0.01, connect_timeout_s=20.0)
READ = ReadCounter("s", "c")
WRITE = Add("s", "c", 1)


def counted(frame: CallFrame) -> bytes:
    return encode_reply(frame.id, CounterValue(7))


def added(frame: CallFrame) -> bytes:
    return encode_reply(frame.id, Added(1, True))


def pass_time(seconds: float) -> None:
    """The running loop's timers are due so much earlier."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
