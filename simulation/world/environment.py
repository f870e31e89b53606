"""An `Environment` from one seed: time that stands still until it is moved, and fsyncs that the test can hold back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeVar

from shoal.backup.bucket import ObjectStore
from shoal.node.environment import Environment

T = TypeVar("T")

START_MS = 1_700_000_000_000
VOLUME_BYTES = 1 << 40


class SimulatedEnvironment:
    """`environment` is what the node gets; the rest is the test's handle on it."""

    sync_s: ClassVar[float] = 0.0
    """How long each fsync takes, in the loop's time; 0: others get a turn."""

    def __init__(self, seed: int = 0, *, start_ms: int = START_MS) -> None:
        self.now_ms = start_ms
        self.random = Random(seed)
        self.gate = asyncio.Event()
        self.gate.set()
        self.environment = Environment(
            now_ms=lambda: self.now_ms,
            monotonic=lambda: self.now_ms / 1000,
            uptime=lambda: self.now_ms / 1000,
            entropy=self.random.randbytes,
            run_blocking=self._run_blocking,
            close=lambda: None,
            open_bucket=self._open_bucket,
            volume=self._volume,
        )
        self.volume: tuple[int, int] | None = (VOLUME_BYTES, VOLUME_BYTES)
        """The free bytes of the disk, and all; None: nobody can tell."""
        self.bucket: ObjectStore | None = None
        """The one at every address."""

    async def _volume(self) -> tuple[int, int] | None:
        return self.volume

    def _open_bucket(self, url: str) -> ObjectStore:
        assert self.bucket is not None, f"there is no bucket at {url}"
        return self.bucket

    def hold_syncs(self) -> None:
        """Nothing becomes durable until `release_syncs`."""
        self.gate.clear()

    def release_syncs(self) -> None:
        self.gate.set()

    async def _run_blocking(self, function: Callable[[], T], /) -> T:
        # Others get a turn first, as they would while a thread blocks.
        await asyncio.sleep(self.sync_s)
        await self.gate.wait()
        return function()
