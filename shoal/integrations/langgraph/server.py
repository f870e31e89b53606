"""A checkpointer and a store for LangGraph's own server, which `langgraph.json` names, with its `ttl`.

The `ttl` of `langgraph.json`: items of the store that expire, and threads that go.

Laws:
- The server hands its configuration over in variables of the environment, and so does everything here read it.
- A rule of retention that a person has set stays: what `langgraph.json` says of threads is set only where no rule is.
- Whatever hinders a rule is logged, and ends no start: runs do not need it.

With these two `langgraph dev` keeps its state:

    "checkpointer": {"path": "shoal.integrations.langgraph.server.checkpointer"},
    "store": {"path": "shoal.integrations.langgraph.server.store"}

SHOAL_DATA names a directory, or SHOAL_URL a node or several: the same variables as of the command line. A node that cannot be
reached, or that refuses the token, ends the server's start with the reason, not its first run.

Law: of a process there is one Shoal store, on a loop and a thread of its own. The server enters both context managers once
on each of its loops; a second opening of one directory would be locked out, and a store on the server's loop would hold up
its requests. The store is closed when the last of them ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from langgraph.store.base import TTLConfig

from shoal import opening
from shoal.client.store import Space, Store
from shoal.errors import InvalidConfig, ShoalError
from shoal.integrations.base import Opening
from shoal.integrations.langgraph.saver import ShoalSaver
from shoal.integrations.langgraph.store import ShoalStore
from shoal.logs import events
from shoal.logs.lines import log
from shoal.protocol.requests import RetentionRules
from shoal.raising import why

_STORE, _CHECKPOINTER, _THREADS = "LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER", "LANGGRAPH_THREAD_TTL"


def of_items(environment: Mapping[str, str]) -> TTLConfig | None:
    """The `ttl` of the section `store`; None if it has none.

    Raises:
        InvalidConfig: it is no JSON object. Nothing was opened.
    """
    found: Any = _object(environment, _STORE).get("ttl")
    return found or None


def of_threads(environment: Mapping[str, str]) -> timedelta | None:
    """After how long without a write a thread goes; None if none does. LANGGRAPH_THREAD_TTL goes before `checkpointer`.

    Raises:
        InvalidConfig: it is neither a number of minutes nor a JSON object. Nothing was opened.
    """
    given = environment.get(_THREADS, "").strip()
    try:
        minutes: Any = float(given) if given and not given.startswith("{") else None
    except ValueError:
        raise InvalidConfig(f"{_THREADS} is neither minutes nor a JSON object: {given[:80]!r}. Nothing was opened.") from None
    if minutes is None:
        ttl = _object(environment, _THREADS) if given else _object(environment, _CHECKPOINTER).get("ttl") or {}
        if ttl.get("strategy", "delete") != "delete":
            log(events.TTL_STRATEGY, strategy=repr(ttl["strategy"]))
            return None
        minutes = ttl.get("default_ttl")
    try:
        return None if minutes is None else timedelta(minutes=minutes)
    except (TypeError, OverflowError, ValueError):
        raise InvalidConfig(f"{minutes!r} is no number of minutes for `ttl` of threads. Nothing was opened.") from None


async def declare(space: Space, ttl: timedelta) -> RetentionRules | None:
    """Have threads go to which nothing was written for so long. None: a rule is there already, or it could not be set."""
    try:
        known = [rule.threads_older_than_ms for rule in (await space.retention.get()).rules if not rule.prefix]
        if known:
            if known != [int(ttl.total_seconds() * 1000)]:
                log(events.TTL_OTHER_RULE, space=space.name)
            return None
        return await space.retention.set(threads_older_than=ttl)
    except ShoalError as error:
        log(events.TTL_TROUBLE, reason=why(error))
        return None


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(environment.get(name) or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{name} is no JSON object. Nothing was opened.")
    return found


_WAIT_S = 30.0  # A node that starts together with the server has this long.


class _Both:
    """The saver and the store of one space. `environment` says what expires."""

    def __init__(self, store: Store, space: str, environment: Mapping[str, str]) -> None:
        self.saver = ShoalSaver(store, space=space)
        self.store = ShoalStore(store, space=space, ttl=of_items(environment))
        ttl = of_threads(environment)
        # The trial of a rule looks at every thread, so nobody waits for it.
        self._declaring = None if ttl is None else asyncio.create_task(declare(store.space(space), ttl))

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
