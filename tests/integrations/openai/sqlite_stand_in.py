"""A pytest plugin for the SDK's own tests: `SQLiteSession` and `AdvancedSQLiteSession` are sessions on Shoal.

Used as `pytest -p sqlite_stand_in tests/memory/test_session.py`, in the directory of the SDK's source distribution.
A `db_path` is a store of its own; ":memory:" is a new one for each session. Stores run on one thread of their own, because
the tests make sessions outside of a loop, and use one from several loops.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory as extensions
import agents.memory as memory
import pytest
from agents.memory.session_settings import coerce_session_settings

from shoal import opening
from shoal.client.store import Store
from shoal.integrations.openai import ShoalSession
from shoal.sync import Portal

_numbers = itertools.count()


class Stores:
    """One embedded store; a database of the tests is a space of it."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.portal = Portal()
        self.opened = opening.open(Path(self.directory.name) / "state")
        self.store: Store = self.portal.run(self.opened.__aenter__)

    def close(self) -> None:
        self.portal.run(self.store.close)
        self.portal.close()
        self.directory.cleanup()


_stores: list[Stores] = []


class StandIn(ShoalSession):
    """A session that takes the arguments of the SDK's."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        *_: Any,
        session_settings: Any = None,
        **__: Any,
    ) -> None:
        if not _stores:
            _stores.append(Stores())
        stores = _stores[0]
        space = f"memory-{next(_numbers)}" if str(db_path) == ":memory:" else str(db_path)
        settings = None if session_settings is None else coerce_session_settings(session_settings)

        async def made() -> None:
            ShoalSession.__init__(self, stores.store, session_id, space=space, session_settings=settings)

        stores.portal.run(made)

    @property
    def _current_branch_id(self) -> str:
        return self.current_branch

    def close(self) -> None:
        """The store is closed at the end."""


for module in (agents, memory):
    module.SQLiteSession = StandIn
extensions.AdvancedSQLiteSession = StandIn


def pytest_sessionfinish(session: pytest.Session) -> None:
    while _stores:
        _stores.pop().close()
