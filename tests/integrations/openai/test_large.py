"""Pictures and documents in a conversation: files of its thread, which come back to the last character."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner
from agents.testing import ScriptedModel, assistant_message

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidValue
from shoal.integrations.openai import ShoalSession
from shoal.integrations.openai.history import LARGE_CHARACTERS
from shoal.values.registry import FileRef

PNG = b"\x89PNG\r\n" + os.urandom(300_000)


def url(content: bytes = PNG, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


def seen(*pictures: str) -> Any:
    return {"role": "user", "content": [{"type": "input_image", "image_url": each} for each in pictures]}


async def references(store: Store, name: str = "s") -> list[FileRef]:
    state = (await store.space("openai").thread(name).load()).state
    found, waiting = list[FileRef](), [state]
    while waiting:
        part = waiting.pop()
        if isinstance(part, FileRef):
            found.append(part)
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else []
    return found


@pytest.mark.parametrize(
    "given",
    [
        url(),
        url(b"%PDF" + PNG, "application/pdf"),
        url(kind="IMAGE/PNG"),
        b64encode(PNG).decode(),
        "long " * LARGE_CHARACTERS,
        "ä" * LARGE_CHARACTERS + "x",
        url() + "=",
        url()[:-8] + "\n" + url()[-8:],
        "data:image/png;base64," + "%" * LARGE_CHARACTERS * 2,
        "\ud800" * LARGE_CHARACTERS * 2,
    ],
    ids=["url", "pdf", "upper case", "bare", "text", "other text", "not canonical", "a line", "no base64", "half a pair"],
)
async def test_a_large_text_comes_back_to_the_last_character(store: Store, given: str) -> None:
    session = ShoalSession(store, "s")
    items = [seen("https://example.com/x.png"), seen(given, given)]
    await session.add_items(list(items))
    assert await session.get_items() == items
    assert len(await references(store)) in (1, 2)


async def test_a_picture_is_a_file_with_its_media_type(store: Store) -> None:
    await ShoalSession(store, "s").add_items([seen(url())])
    [ref] = await references(store)
    assert (ref.type, ref.size) == ("image/png", len(PNG))
    async with store.space("openai").thread("s").open_file(ref) as stream:
        assert await stream.read() == PNG
    assert await store.space("openai").thread("s").files() == []


async def test_a_conversation_has_more_pictures_than_a_request_holds(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state", config=Config(request_bytes_max=1024 * 1024)) as store:
        session = ShoalSession(store, "s")
        items = [seen(url(PNG + bytes([nth]))) for nth in range(8)]
        await session.add_items(list(items))
        assert await session.get_items() == items
        assert await session.get_items(limit=1) == items[-1:]


async def test_branches_and_pops_keep_what_they_have(store: Store) -> None:
    session = ShoalSession(store, "s")
    items = [seen(url()), {"role": "assistant", "content": "a cat"}, seen(url(PNG + b"2"))]
    await session.add_items(list(items))
    await session.create_branch_from_turn(2, "other")
    assert await session.get_items() == items[:2]
    assert [each["message_count"] for each in await session.list_branches()] == [3, 2]
    await session.switch_to_branch("main")
    assert await session.pop_item() == items[2]
    assert await session.get_items() == items[:2]
    await session.clear_session()
    assert await session.get_items() == []


async def test_a_turn_keeps_its_pictures(store: Store) -> None:
    agent: Agent[Any] = Agent(name="clerk", model=ScriptedModel([[assistant_message("a cat")]]))
    session = ShoalSession(store, "s")
    async with session.turn("one") as turn:
        await Runner.run(agent, [seen(url())], session=turn)
    assert (await session.get_items())[0] == seen(url())
    assert len(await references(store)) == 1


async def test_a_picture_that_was_kept_is_not_sent_again(store: Store) -> None:
    session = ShoalSession(store, "s")
    await session.add_items([seen(url())])
    known = dict(session._history._large._known)
    await session.add_items([seen(url())])
    assert session._history._large._known == known
    # Of a session that does not know that its file went: it is sent once more.
    other = ShoalSession(store, "t")
    other._history._large._known.update(known)
    await other.add_items([seen(url())])
    assert await other.get_items() == [seen(url())]


async def test_where_rules_look_into_values_they_stay_values(tmp_path: Path) -> None:
    def names(writing: Any) -> dict[int, str]:
        return {nth: each.text.replace("Ada", "[name]") for nth, each in enumerate(writing.texts) if "Ada" in each.text}

    async with shoal.open(tmp_path / "ruled", redact={"names": names}) as store:
        await store.space("openai").redaction.set(hooks=["names"], files=True)
        session = ShoalSession(store, "s")
        await session.add_items([{"role": "user", "content": "Ada " + "word " * LARGE_CHARACTERS}])
        assert await references(store) == []
        assert "Ada" not in str(await session.get_items())


async def test_a_file_that_is_no_text_is_refused(store: Store) -> None:
    thread = store.space("openai").thread("s")
    ref = await thread.put_file("x", b"\xff\xfe")
    session = ShoalSession(store, "s")
    await session.add_items([{"role": "user", "content": "hi"}])
    await thread.update(append={"items": [{"role": "user", "content": ref}], "times": ["now"]})
    with pytest.raises(InvalidValue, match="holds none"):
        await session.get_items()


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    async with shoal.open(tmp_path / "state") as opened:
        yield opened
