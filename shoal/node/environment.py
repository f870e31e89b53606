"""Time, randomness and threads, as arguments.

Law: nothing else below `shoal.node` calls time, random, os.urandom or a thread
pool, so that a simulator can run the real node in virtual time, from one seed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.raising import needed
from shoal.storage.commit import RunBlocking

if TYPE_CHECKING:
    from shoal.backup.bucket import ObjectStore

T = TypeVar("T")
Room = tuple[int, int]  # Bytes that may still be written, and all.


# The thread that syncs needs the interpreter's lock between its calls. A loop that never waits leaves it to the thread
# only every few milliseconds (`sys.getswitchinterval`), so that a sync takes several times as long.
STEP_PAUSE_S = 0.001

LOOK_S = 5.0
APART_MAX = 4  # Threads of `run_apart`, begun as they are needed.


async def turn() -> None:
    """Let other tasks run; it takes no time."""
    await asyncio.sleep(0)


def opened(url: str) -> ObjectStore:
    """The bucket or directory at an address. It loads the library for them, which most stores do not need.

    Raises:
        InvalidInput: it is no such address.
        Unsupported: the library is not installed.
    """
    with needed():
        from shoal.backup import clouds

    return clouds.opened(url)


async def not_known() -> None:
    """How much room there is, where nobody can tell."""


async def _here(function: Callable[[], T], /) -> T:
    """Run it now, as others get a turn."""
    await asyncio.sleep(0)
    return function()


@dataclass(frozen=True, slots=True)
class Environment:
    """The clocks, the randomness and the threads that a node may use. `close` ends the threads."""

    now_ms: Callable[[], int]  # Wall clock, milliseconds since 1970.
    monotonic: Callable[[], float]  # Seconds.
    uptime: Callable[[], float]  # Seconds for leases: as `monotonic`, but simulated machines count them too fast or too slow.
    entropy: Callable[[int], bytes]  # So many random bytes.
    run_blocking: RunBlocking
    close: Callable[[], None]
    pause: Callable[[], Awaitable[None]] = turn  # Between two steps of work in the background.
    open_bucket: Callable[[str], ObjectStore] = opened  # The place of a backup at an address.
    give_back: Callable[[], None] = lambda: None  # Called after much memory was freed.
    volume: Callable[[], Awaitable[Room | None]] = not_known  # Free bytes and all bytes where the store is; None: not known.
    look_s: float = LOOK_S  # Between two looks of a node at its own conditions. Rehearsals of days look more rarely.
    run_apart: RunBlocking = _here  # As `run_blocking`, on other threads: for what may take long and waits for no disk.
    run_laying: RunBlocking | None = None  # As `run_blocking`, beside it, for large values; None: that one does it.
    give_way: Callable[[], None] = lambda: None  # Let another process have this processor, if one waits for it.


def _monotonic() -> float:
    """Seconds. On Linux they include those in which the machine sleeps: waking up must not look like a clock that was set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def _give_back() -> None:
    """Let the C library give free memory back to the system: it would keep hundreds of MB after a large file."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # Only GNU's has it. It takes milliseconds, and leaves the interpreter to others meanwhile.
        asyncio.get_running_loop().run_in_executor(None, trim, 0)


def volume_of(directory: Path) -> Callable[[], Awaitable[Room | None]]:
    """Asks how much room there is where a directory is. A disk that hangs does not answer."""

    def volume() -> Room | None:
        try:
            found = os.statvfs(directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    # Not the thread that syncs: if that one hangs, the rest is still to be told.
    return lambda: asyncio.get_running_loop().run_in_executor(None, volume)


def system_environment() -> Environment:
    """The clocks and randomness of this machine. One thread serves fsyncs, which the kernel serialises anyway, and one those of
    large values: small writes would wait for them.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shoal-sync")
    layer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shoal-lay")
    apart = ThreadPoolExecutor(max_workers=APART_MAX, thread_name_prefix="shoal-apart")

    def run_blocking(function: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(pool, function)

    def run_laying(function: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(layer, function)

    def run_apart(function: Callable[[], T], /) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(apart, function)

    def close() -> None:
        apart.shutdown(wait=False, cancel_futures=True)  # A hook may hang.
        layer.shutdown(wait=True)
        pool.shutdown(wait=True)

    return Environment(
        now_ms=lambda: time.time_ns() // 1_000_000,
        monotonic=_monotonic,
        uptime=_monotonic,
        entropy=os.urandom,
        run_blocking=run_blocking,
        close=close,
        pause=lambda: asyncio.sleep(STEP_PAUSE_S),
        give_back=_give_back,
        run_apart=run_apart,
        run_laying=run_laying,
        give_way=getattr(os, "sched_yield", lambda: None),
    )
