"""Readers that wait at the end of a stream: one watch of the thread for all of them at this node.

Law: a reader that looks at the tail's version first, and then at the stream, misses nothing by waiting for another version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shoal.api.http.problems import internal
from shoal.config import Config
from shoal.errors import Overloaded, ShoalError, SlowConsumer
from shoal.protocol.requests import Watch
from shoal.protocol.session import Session
from shoal.workflows.streams.record import thread_of


class Tail:
    """The end of one stream, as it moves."""

    def __init__(self, session: Session, space: str, stream: str) -> None:
        self._session = session
        self._watch = Watch(space, "thread", thread_of(stream))
        self._moved = asyncio.Event()
        self.version = 0
        self.users = 0
        self.is_over = False
        self._begun = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def begun(self) -> None:
        """Return once the watch has begun."""
        await self._begun.wait()

    async def moved(self, version: int, timeout_s: float) -> bool:
        """Wait until the stream may have changed since this version. Returns False if the time is over, or the node stops."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == version and not self.is_over:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return not self.is_over

    async def _follow(self) -> None:
        try:
            while True:
                try:
                    async with self._session.subscribe(self._watch) as changes:
                        self._move()
                        self._begun.set()
                        async for _ in changes:
                            self._move()
                        return
                except SlowConsumer:
                    continue  # Whoever waits looks again.
        except ShoalError:
            pass  # The node stops.
        except Exception as bug:
            internal(bug, where="stream")
        finally:
            self.is_over = True
            self._begun.set()
            self._move()

    def _move(self) -> None:
        self.version += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def nudge(self) -> None:
        """Let everybody who waits look again."""
        self._move()

    def wake(self) -> None:
        """Let everybody who waits go: the node stops."""
        self.is_over = True
        self._move()

    async def close(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._session.close()


class Tails:
    """The tails at which somebody waits. `open_session` opens a session of the node's own."""

    def __init__(self, open_session: Callable[[], Session], config: Config) -> None:
        self._open_session = open_session
        self._config = config
        self._tails: dict[tuple[str, str], Tail] = {}
        self._readers = 0
        self._is_over = False
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def at(self, space: str, stream: str) -> Iterator[Tail]:
        """A context with the tail of a stream.

        Raises:
            Overloaded: too many readers wait.
        """
        if self._readers >= self._config.stream_readers_max:
            raise Overloaded(
                f"{self._config.stream_readers_max} live readers of streams are connected to this node (stream_readers_max). "
                "Nothing was written. Try again later, or at another node.",
                retry_after_s=1.0,
            )
        tail = self._tails.get((space, stream))
        if tail is None or tail.is_over:  # Its watch may have failed. Its readers have gone, or go now.
            tail = self._tails[space, stream] = Tail(self._open_session(), space, stream)
            if self._is_over:
                tail.wake()
        tail.users += 1
        self._readers += 1
        try:
            yield tail
        finally:
            tail.users -= 1
            self._readers -= 1
            if not tail.users:
                if self._tails.get((space, stream)) is tail:
                    del self._tails[space, stream]
                closing = asyncio.create_task(tail.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def wake(self) -> None:
        """Let everybody who waits go, and all that come: the node stops."""
        self._is_over = True
        for tail in self._tails.values():
            tail.wake()
