"""The store of LangGraph's server: whatever is wrong with it ends the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.errors import Unreachable
from shoal.integrations.langgraph import server


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SHOAL_DATA", "SHOAL_URL", "SHOAL_SPACE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_a_node_out_of_reach_ends_the_start(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(server, "_WAIT_S", 0.1)
    environment.setenv("SHOAL_URL", "http://127.0.0.1:1")
    for _ in range(2):  # A second start says it again.
        with pytest.raises(Unreachable, match="cannot be reached"):
            async with server.checkpointer():
                pass


async def test_a_directory_below_the_home_is_found(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("HOME", str(tmp_path))
    environment.setenv("SHOAL_DATA", "~/state")
    async with server.checkpointer():
        assert (tmp_path / "state" / "db").is_dir()


async def test_one_store_is_opened_and_closed_by_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Opening:
        def begin(self) -> SimpleNamespace:
            done.append("opened")
            return SimpleNamespace(ask=lambda: None)

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(server, "opening_of", lambda _: Opening())
    shared = server._Shared()
    async with shared.used() as one:
        async with shared.used() as other:
            assert one is other
        assert done == ["opened"]
    assert done == ["opened", "closed"]
