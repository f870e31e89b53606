"""The demo's nodes take ports that no other test's node is given."""

from __future__ import annotations

import pytest

from chaos.ports import free_ports


@pytest.fixture(autouse=True)
def _ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.demo.nodes._free_ports", free_ports)
