"""Tokens of browsers: in a cookie or a sub-protocol, and over Yjs."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

import shoal
from shoal.api.http import origins as credentials
from shoal.config import Config
from shoal.errors import Unauthenticated
from tests.access.conftest import Made, Mint, Serve, Served
from tests.support.yjs_client import closed

PATIENT = Config(request_timeout_s=30.0, reach_timeout_s=30.0)


async def test_a_browser_keeps_the_token_in_a_cookie_that_no_script_reads(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    url = (await serve(token_keys=mint.keys)).url
    made = mint.make("crew:read", lasts_s=100)
    async with http.post(f"{url}/v1/access/cookie", headers=made.header) as answer:
        assert answer.status == 200
        kept = answer.cookies["__Host-shoal"]
        assert (kept["path"], kept["samesite"], bool(kept["secure"]), bool(kept["httponly"])) == ("/", "Strict", True, True)
        assert kept["domain"] == ""
        assert 90 < int(kept["max-age"]) <= 100
    cookie = {"Cookie": f"__Host-shoal={made.text}"}
    async with http.get(f"{url}/v1/spaces/crew/counters/n", headers=cookie) as answer:
        assert answer.status == 200
    async with http.get(f"{url}/v1/access", headers={**cookie, "Origin": url}) as answer:
        assert (await answer.json())["author"] == "planner"
    async with http.delete(f"{url}/v1/access/cookie", headers=cookie) as answer:
        assert answer.cookies["__Host-shoal"]["max-age"] == "0"


async def test_a_cookie_of_another_origins_page_does_not_count(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    url = (await serve(token_keys=mint.keys, allowed_origins="*")).url
    made = mint.make("crew:read,write")
    headers = {"Cookie": f"__Host-shoal={made.text}", "Origin": "https://elsewhere.example"}
    async with http.post(f"{url}/v1/spaces/crew/counters/n", json={"add": 1}, headers=headers) as answer:
        assert answer.status == 401
        assert "Access-Control-Allow-Credentials" not in answer.headers
    async with http.post(
        f"{url}/v1/spaces/crew/counters/n", json={"add": 1}, headers={**made.header, "Origin": "https://elsewhere.example"}
    ) as answer:
        assert answer.status == 200


async def test_a_token_in_a_url_does_not_count(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    url = (await serve(token_keys=mint.keys)).url
    made = mint.make("*:admin")
    for name in ("token", "access_token", "Authorization"):
        async with http.get(f"{url}/v1/access?{name}={made.text}") as answer:
            assert answer.status == 401
            assert made.text not in await answer.text()


@pytest.mark.parametrize("path", ["/v1/session", "/v1/yjs/crew/board"])
async def test_a_websocket_of_a_browser_gives_its_token_as_a_sub_protocol(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession, path: str
) -> None:
    url = (await serve(token_keys=mint.keys)).url
    made = mint.make("crew:read")
    socket = await http.ws_connect(url + path, protocols=("shoal", f"shoal.token.{made.text}"))
    assert socket.protocol == "shoal"  # The token is not sent back.
    await socket.close()
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect(url + path, protocols=("shoal", "shoal.token.wrong"))
    assert caught.value.status == 401


async def yjs(http: aiohttp.ClientSession, served: Served, made: Made) -> aiohttp.ClientWebSocketResponse:
    return await http.ws_connect(served.url + "/v1/yjs/crew/board", headers=made.header)


async def test_a_yjs_client_that_may_only_read_is_cut_off_when_it_writes(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from pycrdt import Doc, Text

    from shoal.protocol import yjs as protocol

    served = await serve(token_keys=mint.keys)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await yjs(http, served, mint.make("crew:counter:read"))
    assert caught.value.status == 403
    document: Doc[Any] = Doc()
    document["text"] = Text("hello")
    update = protocol.encode_update(document.get_update())
    reader = await yjs(http, served, mint.make("crew:document:read"))
    await reader.send_bytes(update)
    code, reason = await closed(reader)
    assert code == 4403
    assert "does not grant `write` of document" in reason
    writer = await yjs(http, served, mint.make("crew:document:read,write"))
    await writer.send_bytes(update)
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        async with asyncio.timeout(30):
            while "board" not in [name async for name in store.space("crew").documents()]:
                await asyncio.sleep(0.01)
    await writer.close()


async def test_a_yjs_connection_ends_with_its_token(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(token_keys=mint.keys)
    socket = await yjs(http, served, mint.make("crew:read", lasts_s=4))
    assert await closed(socket) == (4401, "the token has expired")


async def test_a_hocuspocus_provider_opens_each_document_with_a_token_of_its_own(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from shoal.protocol.yjs import sized

    served = await serve(token_keys=mint.keys)
    stranger = Mint(mint.directory.parent / "stranger")
    tokens = {
        b"none": "",
        b"unknown": stranger.make("crew:read").text,
        b"expired": mint.make("crew:read", lasts_s=10, ago_s=20).text,
        b"elsewhere": mint.make("other:read").text,
        b"counters": mint.make("crew:counter:read").text,
        b"reader": mint.make("crew:document:read").text,
        b"writer": mint.make("crew:document:read,write").text,
    }
    socket = await http.ws_connect(served.url + "/v1/hocuspocus/crew")
    told = {}
    for address, token in tokens.items():
        await socket.send_bytes(sized(address) + b"\x02\x00" + sized(token.encode()))
        answer = await socket.receive_bytes(timeout=30)
        assert answer.startswith(sized(address) + b"\x02")
        told[address] = answer.removeprefix(sized(address))[1:]
    assert {address for address, answer in told.items() if answer[0] == 1} == set(tokens) - {b"reader", b"writer"}
    assert told[b"reader"][2:] == b"readonly"
    assert told[b"writer"][2:] == b"read-write"
    assert b"none was given" in told[b"none"]
    await socket.close()
    # A token of the request counts for a document that has none.
    socket = await http.ws_connect(served.url + "/v1/hocuspocus/crew", headers=mint.make("crew:read").header)
    await socket.send_bytes(sized(b"d") + b"\x02\x00\x00")
    assert (await socket.receive_bytes(timeout=30)).endswith(b"readonly")
    await socket.close()


@pytest.mark.answers("provider-knocks-for-ever")
async def test_a_yjs_client_that_may_only_read_may_say_what_the_document_has(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from pycrdt import Doc, Text

    from shoal.protocol import yjs as protocol

    served = await serve(token_keys=mint.keys)
    document: Doc[Any] = Doc()
    document["text"] = Text("hello")
    del document["text"][1:3]
    writer = await yjs(http, served, mint.make("crew:document:read,write"))
    await writer.send_bytes(bytes((protocol.DURABLE,)))
    await writer.send_bytes(protocol.encode_update(document.get_update()))
    reader = await yjs(http, served, mint.make("crew:document:read"))
    while (await writer.receive_bytes(timeout=30))[0] != protocol.DURABLE:
        pass
    await reader.send_bytes(bytes((protocol.DURABLE,)))
    await reader.send_bytes(protocol.encode_update(document.get_update()))
    while (said := await reader.receive_bytes(timeout=30))[0] != protocol.DURABLE:
        pass
    assert said == protocol.encode_durable(1)
    # Later ones are compared with what is new since then.
    document["text"] += " there"
    await writer.send_bytes(protocol.encode_update(document.get_update()))
    while await writer.receive_bytes(timeout=30) != protocol.encode_durable(2):
        pass
    await reader.send_bytes(protocol.encode_update(document.get_update()))
    while (said := await reader.receive_bytes(timeout=30))[0] != protocol.DURABLE:
        pass
    assert said == protocol.encode_durable(2)
    # A deletion that the document lacks is an edit.
    del document["text"][0]
    await reader.send_bytes(protocol.encode_update(document.get_update()))
    assert (await closed(reader))[0] == 4403
    await writer.close()


async def test_a_hocuspocus_provider_that_may_only_read_is_told_that_its_edits_are_not_kept(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from pycrdt import Doc, Text

    from shoal.protocol import yjs as protocol

    served = await serve(token_keys=mint.keys)
    document: Doc[Any] = Doc()
    document["text"] = Text("hello")
    before = protocol.prefix(b"board")
    socket = await http.ws_connect(served.url + "/v1/hocuspocus/crew", headers=mint.make("crew:document:read").header)
    for message in (b"\x02\x00\x00", protocol.encode_update(document.get_update()), protocol.encode_update(b"\x00\x00")):
        await socket.send_bytes(before + message)
    told = [await socket.receive_bytes(timeout=30) for _ in range(3)]
    assert told == [
        before + protocol.encode_accepted("readonly"),
        before + protocol.encode_status(durable=False),
        before + protocol.encode_status(durable=True),  # Of the update without content.
    ]
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        assert [name async for name in store.space("crew").documents()] == []
    await socket.close()


async def test_a_websocket_of_a_hocuspocus_provider_ends_with_the_first_of_its_tokens(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from shoal.protocol.yjs import sized

    served = await serve(token_keys=mint.keys)
    socket = await http.ws_connect(served.url + "/v1/hocuspocus/crew")
    for address, lasts_s in ((b"long", 999), (b"short", 4)):
        token = mint.make("crew:read", lasts_s=lasts_s).text
        await socket.send_bytes(sized(address) + b"\x02\x00" + sized(token.encode()))
    assert await closed(socket) == (4401, "the token has expired")


async def test_each_edit_of_a_client_that_may_only_read_is_compared_with_what_is_new_and_not_with_the_whole_document(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pycrdt import Doc, Text

    from shoal.protocol import yjs as protocol

    compared: list[int] = []
    brings_nothing = protocol.brings_nothing

    def noted(update: bytes, state: bytes, since: bytes) -> bool:
        compared.append(len(since))
        return brings_nothing(update, state, since)

    monkeypatch.setattr(protocol, "brings_nothing", noted)
    served = await serve(token_keys=mint.keys)
    document: Doc[Any] = Doc()
    document["text"] = Text("x" * 100_000)
    writer = await yjs(http, served, mint.make("crew:document:read,write"))
    await writer.send_bytes(bytes((protocol.DURABLE,)))
    await writer.send_bytes(protocol.encode_update(document.get_update()))
    while (await writer.receive_bytes(timeout=30))[0] != protocol.DURABLE:
        pass
    before = protocol.prefix(b"board")
    reader = await http.ws_connect(served.url + "/v1/hocuspocus/crew", headers=mint.make("crew:document:read").header)
    await reader.send_bytes(before + b"\x02\x00\x00")
    edit: Doc[Any] = Doc()
    edit["text"] = Text("mine")
    for _ in range(5):
        await reader.send_bytes(before + protocol.encode_update(edit.get_update()))
        while await reader.receive_bytes(timeout=30) != before + protocol.encode_status(durable=False):
            pass
    assert compared[0] > 100_000
    assert all(size < 100 for size in compared[1:])
    await reader.close()
    await writer.close()


@pytest.mark.parametrize("path", ["yjs/crew/board", "hocuspocus/crew"])
async def test_a_revoked_token_ends_connections_and_what_they_send_from_then_on_is_not_written(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession, path: str
) -> None:
    from pycrdt import Doc, Text

    from shoal.protocol import yjs as protocol

    served = await serve(token_keys=mint.keys)
    assert served.access is not None
    made = mint.make("crew:read,write")
    socket = await http.ws_connect(f"{served.url}/v1/{path}", headers=made.header)
    before = b"" if path.startswith("yjs") else protocol.prefix(b"board")
    if before:
        await socket.send_bytes(before + b"\x02\x00\x00")
        await socket.receive_bytes(timeout=30)
    document: Doc[Any] = Doc()
    document["text"] = Text("too late")
    served.access.gate.revoke([made.token.id])
    await socket.send_bytes(before + protocol.encode_update(document.get_update()))
    assert await closed(socket) == (4401, "the token is revoked")
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        assert [name async for name in store.space("crew").documents()] == []


def test_a_malformed_bearer_token_is_not_repeated() -> None:
    request = make_mocked_request("GET", "/", headers={"Authorization": "Basic c2VjcmV0"})
    with pytest.raises(Unauthenticated) as refused:
        credentials.presented(request)
    assert "c2VjcmV0" not in refused.value.message


async def test_a_token_that_expires_ends_the_websocket_of_a_provider(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    from shoal.protocol.yjs import sized

    served = await serve(token_keys=mint.keys)
    socket = await http.ws_connect(served.url + "/v1/hocuspocus/crew")
    token = mint.make("crew:document:read", lasts_s=4).text
    await socket.send_bytes(sized(b"d") + b"\x02\x00" + sized(token.encode()))
    assert await closed(socket) == (4401, "the token has expired")
