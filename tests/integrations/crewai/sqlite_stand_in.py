"""A pytest plugin for CrewAI's own tests: what they take for its SQLite persistence is one on Shoal.

Used as `pytest -p sqlite_stand_in tests/test_flow_persistence.py`, in the directory of CrewAI's source distribution.
The path of a database is a space of one store, which is open for the whole run.
"""

from __future__ import annotations

import tempfile
from typing import Any

import crewai.flow.persistence as persistence
import pytest
from crewai.flow.persistence import sqlite

from shoal import opening
from shoal.client.store import Store
from shoal.integrations.crewai import ShoalFlowPersistence
from shoal.sync import Portal

DIRECTORY = tempfile.TemporaryDirectory()
PORTAL = Portal()
OPENED = opening.open(DIRECTORY.name)
STORE: Store = PORTAL.run(OPENED.__aenter__)


def stand_in(db_path: str = "default", **_: Any) -> ShoalFlowPersistence:
    made: ShoalFlowPersistence = PORTAL.run(lambda: ShoalFlowPersistence(STORE, space=str(db_path)))
    return made


for module in (persistence, sqlite):
    module.SQLiteFlowPersistence = stand_in


def pytest_sessionfinish(session: pytest.Session) -> None:
    PORTAL.run(STORE.close)
    PORTAL.close()
    DIRECTORY.cleanup()
