"""A checkpointer and a store for LangGraph's own server, which `langgraph.json` names; so `langgraph dev` keeps its state.

    "checkpointer": {"path": "shoal.integrations.langgraph.server.checkpointer"},
    "store": {"path": "shoal.integrations.langgraph.server.store"}

SHOAL_DATA names a directory, or SHOAL_URL a node or several: the same variables as of the command line. A node that cannot be
reached, or that refuses the token, ends the server's start with the reason, not its first run. `ttl` of both sections is
carried out (`shoal.integrations.langgraph.expiring`).

Law: of a process there is one Shoal store, on a loop and a thread of its own. The server enters both context managers once
on each of its loops; a second opening of one directory would be locked out, and a store on the server's loop would hold up
its requests. The store is closed when the last of them ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from shoal import opening
from shoal.client.store import Store
from shoal.errors import InvalidConfig
from shoal.integrations.base import Opening
from shoal.integrations.langgraph import expiring
from shoal.integrations.langgraph.saver import ShoalSaver
from shoal.integrations.langgraph.store import ShoalStore

_WAIT_S = 30.0  # A node that starts together with the server has this long.


class _Both:
    """The saver and the store of one space. `environment` says what expires."""

    def __init__(self, store: Store, space: str, environment: Mapping[str, str]) -> None:
        self.saver = ShoalSaver(store, space=space)
        self.store = ShoalStore(store, space=space, ttl=expiring.of_items(environment))
        ttl = expiring.of_threads(environment)
        # The trial of a rule looks at every thread, so nobody waits for it.
        self._declaring = None if ttl is None else asyncio.create_task(expiring.declare(store.space(space), ttl))

    def ask(self) -> None:
        """Read what every run reads first, a thread: it raises what the first run would have met."""
        self.saver.get_tuple({"configurable": {"thread_id": "0"}})


@asynccontextmanager
async def checkpointer() -> AsyncIterator[ShoalSaver]:
    """The checkpointer of the server, while it runs.

    Raises:
        InvalidConfig: neither SHOAL_DATA nor SHOAL_URL is set, or both are; nothing was opened.
        Unreachable: the node could not be reached within 30 s.
    """
    async with _shared.used() as both:
        yield both.saver


@asynccontextmanager
async def store() -> AsyncIterator[ShoalStore]:
    """The long-term memory of the server, while it runs, without an index. Raises as `checkpointer`."""
    async with _shared.used() as both:
        yield both.store


def opening_of(environment: Mapping[str, str]) -> Opening[_Both]:
    """The opening of the store that these variables name. SHOAL_SPACE is its space, `langgraph` if it is not set.

    Raises:
        InvalidConfig: they name no store, or two.
    """
    directory, urls = environment.get("SHOAL_DATA", ""), environment.get("SHOAL_URL", "")
    space = environment.get("SHOAL_SPACE") or "langgraph"
    if bool(directory) == bool(urls):
        raise InvalidConfig(
            f"{'both' if urls else 'neither'} SHOAL_DATA {'and' if urls else 'nor'} SHOAL_URL {'are' if urls else 'is'} set. "
            'Nothing was opened. Name one store under "env" in langgraph.json: {"SHOAL_DATA": "./state"} for a directory, '
            '{"SHOAL_URL": "http://127.0.0.1:7400"} for a node that several servers share.'
        )
    if directory:
        return Opening(lambda: opening.open(Path(directory).expanduser()), lambda store: _Both(store, space, environment))
    tls_ca = environment.get("SHOAL_TLS_CA") or None
    return Opening(lambda: opening.connect(urls, tls_ca=tls_ca, wait=_WAIT_S), lambda store: _Both(store, space, environment))


class _Shared:
    """The store of this process, and how many use it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users = 0
        self._opening: Opening[_Both] | None = None
        self._both: _Both | None = None

    @asynccontextmanager
    async def used(self) -> AsyncIterator[_Both]:
        """Open the store if nobody has, and close it if nobody uses it any more; neither holds up the caller's loop."""
        both = await asyncio.to_thread(self._entered)
        try:
            yield both
        finally:
            await asyncio.to_thread(self._left)

    def _entered(self) -> _Both:
        with self._guard:
            if self._both is None:
                self._opening = opening_of(os.environ)
                both = self._opening.begin()
                try:
                    both.ask()
                except BaseException:
                    self._opening.close()
                    raise
                self._both = both
            self._users += 1
            return self._both

    def _left(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users and self._opening is not None:
                self._opening.close()
                self._opening = self._both = None


_shared = _Shared()
