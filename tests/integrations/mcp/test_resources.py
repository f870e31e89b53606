"""Resources, and what a client is told of changes that other processes make."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.types import (
    BlobResourceContents,
    EmptyResult,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

import shoal
from shoal.client.watching import Reset
from shoal.config import Config
from shoal.errors import InvalidInput, NotFound, TooLarge
from shoal.integrations.mcp import resources
from shoal.integrations.mcp.resources import Place, Subscriptions, place_of
from shoal.protocol.position import Position
from tests.integrations.mcp.conftest import WHOLE_TEST_S, answer, client

NAME = "{crew-7}/größe ?#%2F"


@pytest.mark.parametrize("kind", ["thread", "document"])
@pytest.mark.parametrize("name", [NAME, "a", "a/b", "100%", "ö"])
def test_a_uri_gives_its_name_back(kind: Any, name: str) -> None:
    place = Place("my space", kind, name)
    assert place_of(place.uri, "my space") == place


@pytest.mark.parametrize("thread", [".files", NAME, "files", "a/files/b"])
@pytest.mark.parametrize("file", ["page.png", "screenshots/page.png", NAME, "files"])
def test_a_uri_of_a_file_gives_its_name_back(thread: str, file: str) -> None:
    place = Place("my space", "thread", thread, file)
    assert place_of(place.uri, "my space") == place


@pytest.mark.parametrize(
    "name", ["a/b", "a/files", "a/files/b/c", "a/b/files/c", "files/a/files/b", "a/files/b/files/c", "a//b"]
)
@pytest.mark.parametrize("kind", ["threads", "documents", "files"])
def test_a_slash_that_is_not_encoded_is_refused(kind: str, name: str) -> None:
    """Else it would depend on the names which of two objects is meant."""
    with pytest.raises(InvalidInput, match="%2F"):
        place_of(f"shoal://crew/{kind}/{name}", "crew")


def test_a_thread_and_a_file_of_another_are_told_apart() -> None:
    assert place_of("shoal://crew/threads/a/files/b", "crew") == Place("crew", "thread", "a", "b")
    assert place_of("shoal://crew/threads/a%2Ffiles%2Fb", "crew") == Place("crew", "thread", "a/files/b")


async def test_files_are_listed_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shoal.open(tmp_path, config=Config(page_items_max=2)) as store:
        space = store.space("crew")
        await space.thread("t").save({"x": 1})
        await space.put_file("screenshots/page.png", b"\x89PNG\xff")
        for name in ("a.txt", "b.txt"):
            await space.put_file(name, b"hello")
        await space.thread("t").put_file("own.json", b"[1]")
        found, cursor = await resources.page(store.connection, "crew", None)
        while cursor is not None:
            listed, cursor = await resources.page(store.connection, "crew", cursor)
            found += listed
        files = [each for each in found if "/files/" in str(each.uri)]
        assert [(each.name, each.mime_type, each.size) for each in files] == [
            ("a.txt", "text/plain", 5),
            ("b.txt", "text/plain", 5),
            ("screenshots/page.png", "image/png", 5),
        ]
        text = await resources.contents(store.connection, space, str(files[0].uri))
        assert isinstance(text, TextResourceContents)
        assert text.text == "hello"
        picture = await resources.contents(store.connection, space, str(files[2].uri))
        assert isinstance(picture, BlobResourceContents)
        assert (base64.b64decode(picture.blob), picture.mime_type) == (b"\x89PNG\xff", "image/png")
        own = await resources.contents(store.connection, space, "shoal://crew/threads/t/files/own.json")
        assert isinstance(own, TextResourceContents)
        assert own.text == "[1]"
        with pytest.raises(NotFound):
            await resources.contents(store.connection, space, "shoal://crew/files/none")
        monkeypatch.setattr(resources, "MCP_FILE_BYTES_MAX", 4)
        with pytest.raises(TooLarge, match="shoal file get"):
            await resources.contents(store.connection, space, str(files[0].uri))


@pytest.mark.parametrize(
    "uri", ["", "http://x", "shoal://s", "shoal://s/threads", "shoal://s/counters/n", "shoal://other/threads/t"]
)
def test_a_uri_of_nothing_here_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput, match="Nothing was read"):
        place_of(uri, "s")


async def test_threads_and_documents_are_listed_and_read(target: list[str]) -> None:
    async with client(*target, "--space", "crew") as made:
        await answer(made, "edit_thread", thread=NAME, set={"x": 1})
        await answer(made, "edit_document", document="plan", content={"text": "hello"})
        first = await made.list_resources()
        found = [(each.name, each.uri) for each in first.resources]
        while first.next_cursor is not None:
            first = await made.list_resources(cursor=first.next_cursor)
            found += [(each.name, each.uri) for each in first.resources]
        assert [name for name, _ in found] == [NAME, "plan"]
        assert await read(made, found[0][1]) == {
            "id": (await answer(made, "load_thread", thread=NAME))["id"],
            "state": {"x": 1},
        }
        assert await read(made, "shoal://crew/documents/plan") == {"text": "hello"}
        templates = (await made.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == [
            "shoal://crew/threads/{name}",
            "shoal://crew/documents/{name}",
            "shoal://crew/files/{file}",
            "shoal://crew/threads/{name}/files/{file}",
        ]
        for wrong in ("shoal://crew/threads/none", "shoal://other/threads/t", "file:///etc/passwd"):
            with pytest.raises(MCPError, match=r"NotFound|InvalidInput"):
                await made.read_resource(wrong)
        with pytest.raises(MCPError, match="no cursor"):
            await made.list_resources(cursor="nonsense")


async def read(made: Any, uri: str) -> Any:
    (content,) = (await made.read_resource(uri)).contents
    return json.loads(content.text)


async def test_a_subscriber_is_told_of_what_another_process_writes(url: str) -> None:
    async with asyncio.timeout(WHOLE_TEST_S), shoal.connect(url) as store, client("--url", url) as made:
        space = store.space("default")
        uris = ["shoal://default/threads/t", "shoal://default/documents/plan"]
        async with made.listen(resource_subscriptions=uris, resources_list_changed=True) as changes:
            await space.thread("other").update({"x": 1})
            assert await anext(changes) == ResourcesListChanged()
            await space.thread("t").update({"x": 1})
            assert [await anext(changes), await anext(changes)] == [ResourcesListChanged(), ResourceUpdated(uri=uris[0])]
            async with await space.document("plan") as document:
                document.map("tasks")["t1"] = 1
            assert [await anext(changes), await anext(changes)] == [ResourcesListChanged(), ResourceUpdated(uri=uris[1])]
            assert await read(made, uris[1]) == {"tasks": {"t1": 1}}


async def test_a_client_of_before_2026_is_told_until_it_unsubscribes(url: str) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def noted(message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            told.put_nowait(message.params.uri)

    async with (
        asyncio.timeout(WHOLE_TEST_S),
        shoal.connect(url) as store,
        client("--url", url, mode="legacy", message_handler=noted) as made,
    ):
        space = store.space("default")
        uris = ["shoal://default/threads/t", "shoal://default/threads/u"]
        for uri in uris:
            await made.session.send_request(subscribing("resources/subscribe", uri), EmptyResult)
        await space.thread("t").update({"x": 1})
        assert await told.get() == uris[0]
        await made.session.send_request(subscribing("resources/unsubscribe", uris[0]), EmptyResult)
        await space.thread("t").update({"x": 2})
        await space.thread("u").update({"x": 1})
        assert await told.get() == uris[1], "changes of the first one would have come before"


def subscribing(method: str, uri: str) -> Any:
    if method == "resources/subscribe":
        return SubscribeRequest(params=SubscribeRequestParams(uri=uri))
    return UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))


async def test_a_subscription_of_nothing_is_refused(tmp_path: Path) -> None:
    async with asyncio.timeout(WHOLE_TEST_S), client("--data", str(tmp_path / "state")) as made:
        with pytest.raises(MCPError, match="names no resource"):
            async with made.listen(resource_subscriptions=["http://x"]):
                pass
        assert await answer(made, "list_names", kind="thread") == {"names": [], "more": False}


async def test_one_watch_tells_all_and_whoever_may_have_missed_a_change_is_told_to_read_again(tmp_path: Path) -> None:
    told: list[Any] = []
    async with shoal.open(tmp_path / "state") as store:
        subscriptions = Subscriptions(store.connection, store.space("default"), ended=lambda: None)
        subscriptions.subscribe(told.append)
        uris = ["shoal://default/threads/t", "shoal://default/documents/plan"]
        assert (await store.status()).connections == 0
        for uri in uris:
            await subscriptions.want([uri])
        async with asyncio.timeout(WHOLE_TEST_S):
            while not (await store.status()).connections:
                await asyncio.sleep(0)
        assert (await store.status()).connections == 1
        await subscriptions._told(Reset("changes were left out", Position()))
        assert told == [ResourcesListChanged(), *(ResourceUpdated(uri=uri) for uri in uris)]
        await subscriptions.close()
