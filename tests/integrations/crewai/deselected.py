"""CrewAI's own tests that cannot hold for another store: the reason, and the tests."""

from __future__ import annotations

DESELECTED: dict[str, list[str]] = {
    "it wants SQLite where no persistence is registered.": [
        "tests/test_flow_persistence_factory.py::test_default_falls_back_to_sqlite"
    ],
}
