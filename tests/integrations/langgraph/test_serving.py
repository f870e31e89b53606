"""The store of LangGraph's server: whatever is wrong with it ends the start, and what `langgraph.json` lets expire expires."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

import shoal
from shoal.errors import InvalidConfig, Unreachable
from shoal.integrations.langgraph import server
from shoal.integrations.langgraph.store import VersionedItem


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SHOAL_DATA", "SHOAL_URL", "SHOAL_SPACE", "LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER", "LANGGRAPH_THREAD_TTL"):
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


async def test_an_item_expires_after_the_ttl_of_the_store(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("SHOAL_DATA", str(tmp_path / "state"))
    environment.setenv("LANGGRAPH_STORE", '{"ttl": {"default_ttl": 60, "refresh_on_read": false}}')
    async with server.store() as store:
        await store.aput(("a",), "tea", {"n": 1})
        await store.aput(("a",), "stays", {"n": 1}, ttl=None)
        tea, stays = await store.aget(("a",), "tea"), await store.aget(("a",), "stays")
        assert isinstance(tea, VersionedItem)
        assert tea.expires_at is not None
        assert timedelta(minutes=59) < tea.expires_at - datetime.now(tea.expires_at.tzinfo) <= timedelta(minutes=60)
        assert isinstance(stays, VersionedItem)
        assert stays.expires_at is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LANGGRAPH_CHECKPOINTER", '{"ttl": {"strategy": "delete", "default_ttl": 30}}'),
        ("LANGGRAPH_THREAD_TTL", "30"),
        ("LANGGRAPH_THREAD_TTL", '{"default_ttl": 30, "sweep_limit": 5}'),
    ],
)
async def test_the_ttl_of_threads_is_a_rule(environment: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str) -> None:
    environment.setenv("SHOAL_DATA", str(tmp_path / "state"))
    environment.setenv(name, value)
    async with server.checkpointer() as saver:
        await saver._bridge.awaited(lambda: _declared())
    async with shoal.open(tmp_path / "state") as store:
        [rule] = (await store.space("langgraph").retention.get()).rules
        assert (rule.prefix, rule.threads_older_than_ms, rule.keep_last) == ("", 1_800_000, None)


async def _declared() -> None:
    both = server._shared._both
    assert both is not None
    assert both._declaring is not None
    await both._declaring


async def test_a_rule_of_a_person_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with shoal.open(tmp_path) as store:
        space = store.space("langgraph")
        await space.retention.set(keep_last=7)
        assert await server.declare(space, timedelta(minutes=30)) is None
        [rule] = (await space.retention.get()).rules
        assert rule.keep_last == 7
        assert "has another rule" in caplog.text


async def test_a_rule_that_cannot_be_set_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with shoal.open(tmp_path) as store:
        assert await server.declare(store.space(".shoal"), timedelta(minutes=30)) is None
    assert "`ttl` of threads is not used" in caplog.text


@pytest.mark.parametrize("value", ["half an hour", "[]", "{", '{"default_ttl": "x"}', "1e300"])
def test_a_ttl_that_is_none_ends_the_start(value: str) -> None:
    with pytest.raises(InvalidConfig):
        server.of_threads({"LANGGRAPH_THREAD_TTL": value})


def test_a_strategy_that_is_not_carried_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert server.of_threads({"LANGGRAPH_CHECKPOINTER": '{"ttl": {"strategy": "keep_latest", "default_ttl": 3}}'}) is None
    assert "saver.prune" in caplog.text


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
