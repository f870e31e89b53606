"""Clients that we did not write, on a real cluster: JavaScript's `yjs` and `y-websocket`, and pycrdt's own Provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pycrdt
import pytest

import shoal
from shoal.demo.nodes import Node, cluster
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state.yjs import parse_state
from tests.end_to_end.editors import DOCUMENT, PATIENCE_S, SPACE, Editor, editor, needs_node


@pytest.fixture
async def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with cluster(tmp_path, size=request.param, name="yjs", temporary=False) as running:
        yield running


def content(document: Document) -> Any:
    """As the JavaScript client says it."""
    return {"text": str(document.text("text")), "map": document.to_py()["map"], "list": document.to_py()["list"]}


async def agreed(document: Document, *editors: Editor, having: Any) -> Any:
    """Wait until the agent's mirror has all that `having` says, which no edit follows, and every editor holds the same."""
    async with asyncio.timeout(PATIENCE_S):
        while not having(content(document)):
            await asyncio.sleep(0.01)
        await document.flush()
        for one in editors:
            await one("until", content(document))
    return content(document)


@needs_node
@pytest.mark.parametrize("nodes", [3], indirect=True)
async def test_editors_and_an_agent_on_three_nodes_are_equal_offline_and_after_a_kill(nodes: list[Node]) -> None:
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(editor()) for _ in range(2)]
        await one.connect(nodes[0])
        await other.connect(nodes[1])
        store = await stack.enter_async_context(shoal.connect(nodes[2].url))
        document = await stack.enter_async_context(await store.space(SPACE).document(DOCUMENT))
        document.text("text"), document.map("map"), document.list("list")

        # All at once.
        for number in range(10):
            await one("append", f"a{number}")
            await other("insert", 0, "b")
            document.text("text").insert(0, "c")
            await one("set", f"one-{number}", number)
            await other("set", "shared", number)
            document.map("map")["agent"] = {"n": number}
            await other("push", {"from": "other", "n": number})
            document.list("list").append(number)
        await one("nest", "inner")
        whole = await agreed(
            document,
            one,
            other,
            having=lambda c: (len(c["text"]), len(c["list"]), c["map"].get("inner")) == (40, 20, {"list": []}),
        )
        assert whole["text"].count("b") == 10
        assert {f"one-{number}" for number in range(10)} | {"shared", "agent", "inner"} == set(whole["map"])

        # One is offline, and edits; so do the others.
        await one("disconnect")
        await one("remove", 0, 5)
        await one("insert", 0, "é😀")
        await one("into", "inner", "offline")
        await one("push", "offline")
        await other("append", "meanwhile")
        document.map("map")["meanwhile"] = True
        await one.connect(nodes[0])
        await agreed(document, one, other, having=lambda c: "offline" in c["list"] and c["text"].endswith("meanwhile"))
        assert "é😀" in content(document)["text"]
        assert content(document)["map"]["inner"] == {"list": ["offline"]}

        # The node of one dies without a word; its client goes on at another, with what it edited meanwhile.
        nodes[0].kill()
        while nodes[0].is_running:
            await asyncio.sleep(0.01)
        await one("append", "after the end")
        await one.connect(nodes[1])
        document.map("map")["after"] = 1
        await other("push", "after")
        await agreed(
            document,
            one,
            other,
            having=lambda c: "after the end" in c["text"] and c["map"].get("after") == 1 and "after" in c["list"],
        )

        # It comes back, and holds the same.
        await nodes[0].start()
        returned = await stack.enter_async_context(shoal.connect(nodes[0].url))
        seen = await stack.enter_async_context(await returned.space(SPACE).document(DOCUMENT))
        async with asyncio.timeout(PATIENCE_S):
            while seen.to_py() != document.to_py():
                await asyncio.sleep(0.01)


@needs_node
@pytest.mark.parametrize("nodes", [2], indirect=True)
async def test_editors_on_two_nodes_see_each_other_and_the_agent(nodes: list[Node]) -> None:
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(editor()) for _ in range(2)]
        await one.connect(nodes[0])
        await other.connect(nodes[1])
        store = await stack.enter_async_context(shoal.connect(nodes[1].url))
        document = await stack.enter_async_context(await store.space(SPACE).document(DOCUMENT))
        await document.presence.set({"user": {"name": "critic"}})
        await one("say", {"user": {"name": "Ada"}})
        await other("say", {"user": {"name": "Bob"}})

        def names(states: list[Any]) -> list[str]:
            return sorted(state["user"]["name"] for state in states if state)

        async with asyncio.timeout(PATIENCE_S):
            while names(await one("others")) != ["Bob", "critic"] or names(await other("others")) != ["Ada", "critic"]:
                await asyncio.sleep(0.01)
            members = {member.id: member.state for member in await document.presence.members()}
            assert members[await one("id")] == {"user": {"name": "Ada"}}
            await other("disconnect")
            while names(await one("others")) != ["critic"]:
                await asyncio.sleep(0.01)


class SocketChannel:
    """aiohttp's WebSocket as the channel that pycrdt's Provider asks for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, path: str) -> None:
        self._socket = socket
        self.path = path

    def __aiter__(self) -> SocketChannel:
        return self

    async def __anext__(self) -> bytes:
        return await self.recv()

    async def send(self, message: bytes) -> None:
        await self._socket.send_bytes(message)

    async def recv(self) -> bytes:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise StopAsyncIteration
        return bytes(message.data)


async def test_pycrdts_own_provider_joins(url: str) -> None:
    docs: list[pycrdt.Doc[Any]] = [pycrdt.Doc(), pycrdt.Doc()]
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        for doc in docs:
            joining = http.ws_connect(f"{url}/v1/yjs/{SPACE}/provided".replace("http:", "ws:"))
            socket = await stack.enter_async_context(joining)
            provider = await stack.enter_async_context(pycrdt.Provider(doc, SocketChannel(socket, "provided")))
            await asyncio.wait_for(provider.synced.wait(), PATIENCE_S)
        texts = [doc.get("text", type=pycrdt.Text) for doc in docs]
        texts[0] += "hello"
        docs[1].get("map", type=pycrdt.Map)["k"] = 1
        async with asyncio.timeout(PATIENCE_S):
            # The bytes of a state are in no particular order.
            while parse_state(docs[0].get_state()) != parse_state(docs[1].get_state()) or not str(texts[1]):
                await asyncio.sleep(0.01)
        assert str(texts[1]) == "hello"
        async with shoal.connect(url) as store, await store.space(SPACE).document("provided") as document:
            assert document.to_py() == {"map": {"k": 1}, "text": "hello"}
