"""Histories: what the framework's own provider keeps, and what is ours."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agent_framework import FileHistoryProvider, HistoryProvider, Message

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import Disconnected, InvalidName, InvalidValue, SchemaTooNew, TooLarge
from shoal.integrations.microsoft import ShoalHistoryProvider, ShoalState
from tests.cli.conftest import served
from tests.integrations.microsoft import worker


def said(text: str, role: str = "user", **more: Any) -> Message:
    return Message(role, [text], **more)


def turn(nth: int) -> list[Message]:
    return [said(f"ask {nth}"), said(f"answer {nth}", "assistant")]


async def texts(provider: HistoryProvider, session: str | None = "s") -> list[str]:
    return [message.text for message in await provider.get_messages(session)]


@pytest.fixture(params=["embedded", "served", "theirs"])
async def provider(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> AsyncIterator[HistoryProvider]:
    if request.param == "theirs":
        with warnings.catch_warnings(action="ignore"):  # It is experimental.
            yield FileHistoryProvider(tmp_path / "files", skip_excluded=True)
    else:
        where = tmp_path / "state"
        store = shoal.open(where) if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
        async with store as opened:
            yield ShoalHistoryProvider(opened, space=space, skip_excluded=True)


@pytest.fixture
async def ours(opened: Store, space: str) -> ShoalHistoryProvider:
    return ShoalHistoryProvider(opened, space=space)


# ── laws of the framework ─────────────────────────────────────────────────────


async def test_messages_come_back_as_they_are(provider: HistoryProvider) -> None:
    assert await provider.get_messages("s") == []
    given = [
        said("größe\x9b", message_id="m1", author_name="ana", additional_properties={"a": [None, 1.5]}),
        said("", "assistant"),
    ]
    await provider.save_messages("s", given)
    await provider.save_messages("s", [])
    assert [each.to_dict() for each in await provider.get_messages("s")] == [each.to_dict() for each in given]
    assert await provider.get_messages("other") == []


async def test_a_transcript_that_is_saved_again_does_not_grow(provider: HistoryProvider) -> None:
    await provider.save_messages("s", turn(1))
    await provider.save_messages("s", [*turn(1), *turn(2)])
    await provider.save_messages("s", turn(2))
    assert await texts(provider) == ["ask 1", "answer 1", "ask 2", "answer 2"]
    await provider.save_messages("s", turn(1))
    assert len(await texts(provider)) == 6


async def test_excluded_messages_are_left_out(provider: HistoryProvider) -> None:
    await provider.save_messages("s", [said("a", additional_properties={"_excluded": True}), said("b")])
    assert await texts(provider) == ["b"]


async def test_an_agent_remembers(provider: HistoryProvider) -> None:
    for nth in range(2):
        clerk = worker.agent(provider)
        await clerk.run(f"turn {nth}", session=clerk.create_session(session_id="s"))
    assert await texts(provider) == ["turn 0", "done: turn 0", "turn 1", "done: turn 1"]


async def test_a_session_without_an_id(provider: HistoryProvider) -> None:
    await provider.save_messages(None, [said("a")])
    assert await texts(provider, None) == ["a"]


# ── ours ──────────────────────────────────────────────────────────────────────


async def test_saves_made_at_once_stand_together(opened: Store, space: str) -> None:
    writers = [ShoalHistoryProvider(opened, space=space) for _ in range(4)]
    await asyncio.gather(*(writers[nth % 4].save_messages("s", turn(nth)) for nth in range(12)))
    found = await texts(writers[0])
    assert sorted(found[::2]) == sorted(f"ask {nth}" for nth in range(12))
    assert [each.replace("ask", "answer") for each in found[::2]] == found[1::2]


async def test_of_one_transcript_saved_twice_at_once_one_is_there(ours: ShoalHistoryProvider) -> None:
    await asyncio.gather(*(ours.save_messages("s", turn(1)) for _ in range(4)))
    assert await texts(ours) == ["ask 1", "answer 1"]


async def test_a_cleared_session_begins_anew(ours: ShoalHistoryProvider) -> None:
    await ours.clear("s")
    await ours.save_messages("s", turn(1))
    await ours.clear("s")
    assert await texts(ours) == []
    await ours.save_messages("s", turn(1))
    assert await texts(ours) == ["ask 1", "answer 1"]


async def test_values_without_a_json_form_are_refused_whole(ours: ShoalHistoryProvider) -> None:
    with pytest.raises(InvalidValue, match=r"messages\[1\] is no JSON.*Nothing was written"):
        await ours.save_messages("s", [said("a"), said("b", additional_properties={"it": {("a",): 1}})])
    assert await texts(ours) == []


@pytest.mark.parametrize("id", ["a/b", "..", "%2f", "größe\x00", "{tag}", "s/messages"])
async def test_ids_are_arbitrary_text(ours: ShoalHistoryProvider, id: str) -> None:
    await ours.save_messages(id, turn(1))
    assert await texts(ours, id) == ["ask 1", "answer 1"]
    assert await texts(ours, "s") == []


async def test_names_and_values_too_large_are_refused(tmp_path: Path) -> None:
    async with ShoalState.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as state:
        with pytest.raises(InvalidName, match="at most 1024 bytes"):
            await state.history.save_messages("s" * 2048, turn(1))
        with pytest.raises(TooLarge):
            await state.history.save_messages("s", [said("a"), said("x" * 70_000)])
        assert await texts(state.history) == []


async def test_a_newer_form_is_refused_and_nothing_is_written(opened: Store, space: str) -> None:
    journal = opened.space(space).thread("{s}/messages").journal
    await journal.append({"microsoft": 2, "message": {}})
    ours = ShoalHistoryProvider(opened, space=space)
    for call in (ours.get_messages("s"), ours.save_messages("s", turn(1))):
        with pytest.raises(SchemaTooNew, match="Update Shoal here"):
            await call
    assert len([each async for each in journal.read()]) == 1


async def test_a_node_that_is_gone_in_the_middle(tmp_path: Path) -> None:
    quick = Config(request_timeout_s=0.2, failover_timeout_s=0.1)
    with served(tmp_path / "state") as (process, url):
        async with ShoalState.connect(url, config=quick) as state:
            await state.history.save_messages("s", turn(1))
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.wait)
            with pytest.raises(Disconnected):
                await state.history.save_messages("s", turn(2))
    async with ShoalState.open(tmp_path / "state") as state:
        assert await texts(state.history) == ["ask 1", "answer 1"]
