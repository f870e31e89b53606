"""What closes a Yjs client's connection, and what does not."""

from __future__ import annotations

from typing import Any

import aiohttp
import pycrdt
import pytest

from shoal.errors import ReadOnly
from shoal.kinds.document.state import yjs as items
from shoal.protocol import requests, yjs
from tests.api.yjs.conftest import Serve, Served, map_of, text_of


def nested_document() -> bytes:
    """An update that no document holds: a document within a map."""
    return bytes([1, 1, 3, 0, 0x20 | 9, 1, 1]) + b"x" + b"\1k" + b"\1d" + bytes([118, 0]) + b"\0"


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (b"\x00\x02\x05ab", 4400, "ends too early"),
        (b"\x00\x02\x02\xff\xff", 4400, "Yjs"),
        (yjs.encode_update(nested_document()), 4400, "sub-documents"),
        (yjs.encode_update(bytes([1, 1, 5, 0, 7, 1, 1, 120, 5, 1, 104, 0])), 4400, "XML hook"),
        (b"\x00\x05", 4400, "unknown kind"),
        (yjs.encode_step_1(b"\xff"), 4400, "ends too early"),
        (yjs.encode_update(b"\x00" * (1 << 16)), 1009, ""),
    ],
)
async def test_a_malformed_frame_closes_its_connection_alone(serve: Serve, message: bytes, code: int, reason: str) -> None:
    served = await serve(yjs_update_bytes_max=1 << 15)
    async with served.client() as bad, served.client() as one, served.client() as other:
        await bad.send(message)
        found, why = await bad.closed()
        assert found == code
        assert reason in why
        assert len(why.encode()) <= 123
        text_of(one).insert(0, "goes on")
        await other.until(lambda: str(text_of(other)) == "goes on")


async def test_a_bad_update_takes_none_of_its_neighbours_with_it(served: Served) -> None:
    async with served.client() as bad, served.client() as one, served.client() as other:
        text_of(one).insert(0, "good")
        await bad.send(yjs.encode_update(nested_document()))
        assert (await bad.closed())[0] == 4400
        await other.until(lambda: str(text_of(other)) == "good")


async def test_a_text_message_closes_with_1003(served: Served) -> None:
    async with served.client() as bad:
        await bad.socket.send_str("hello")
        assert await bad.closed() == (1003, "messages are binary")


async def test_unknown_messages_are_ignored(served: Served) -> None:
    async with served.client() as one, served.client() as other:
        for message in (b"\x2a\x01\x02", b"\x02\x00\x01x", b""):
            await one.send(message)
        text_of(one).insert(0, "still here")
        await other.until(lambda: str(text_of(other)) == "still here")


async def test_a_root_used_as_another_kind_is_refused(served: Served) -> None:
    async with served.client() as one:
        map_of(one, "r")["k"] = 1
        await one.until(lambda: one.updates > 1)
        async with served.client() as bad:
            doc: pycrdt.Doc[Any] = pycrdt.Doc()
            doc.get("r", type=pycrdt.Text).insert(0, "x")
            await bad.send(yjs.encode_update(doc.get_update()))
            code, reason = await bad.closed()
            assert code == 4409
            assert "another kind" in reason


async def test_an_editor_of_deleted_content_restores_nothing(served: Served) -> None:
    async with served.client() as one:
        text_of(one).insert(0, "deleted")
        await one.until(lambda: one.updates > 1)
        await served.bench.node.session().call(requests.DeleteDocument("crew", "d"))
        code, reason = await one.closed()
        assert code == 4410
        assert "deleted" in reason
    again = served.client(doc=one.doc)
    await again.connect()
    assert (await again.closed())[0] == 4410
    async with served.client() as new:
        assert str(text_of(new)) == ""
        text_of(new).insert(0, "begun anew")
        await new.until(lambda: new.updates > 1)
    assert await served.json() == {"t": "begun anew"}


async def test_an_update_that_came_too_early_is_asked_for_again(served: Served) -> None:
    """As from a client that was at another node, whose updates this one lacks."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.get("t", type=pycrdt.Text).insert(0, "a")
    state = doc.get_state()
    one = served.client(doc=doc)
    await one.connect(synchronise=False)
    doc.get("t", type=pycrdt.Text).insert(1, "b")
    assert doc.get_update(state) != doc.get_update()
    async with served.client() as other:
        await other.until(lambda: str(text_of(other)) == "ab")
    await one.disconnect()


@pytest.mark.answers("error-while-writing-ends-a-room")
async def test_a_storage_that_fails_closes_who_writes_and_keeps_who_reads(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ReadOnly("Storage failed and refuses writes. Nothing was written.")

    async with served.client() as writer, served.client() as reader:
        monkeypatch.setattr(served.bench.node.service._commit, "write", refuse)
        map_of(writer)["k"] = 1
        code, reason = await writer.closed()
        assert code == 1013
        assert "refuses writes" in reason
        monkeypatch.undo()
        async with served.client(doc=writer.doc):
            await reader.until(lambda: "k" in map_of(reader))


async def test_past_the_bound_connections_are_refused(serve: Serve) -> None:
    served = await serve(yjs_connections_max=1)
    async with served.client():
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await served.client().connect()
        assert refused.value.status == 429


async def test_a_page_of_another_origin_is_refused(served: Served) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await served.http.ws_connect(served.client().url, origin="http://elsewhere")
    assert refused.value.status == 403


async def test_a_page_of_an_origin_that_is_allowed_joins(serve: Serve) -> None:
    served = await serve(allowed_origins="https://other.example, https://App.example/")
    socket = await served.http.ws_connect(served.client().url, origin="https://app.example")
    await socket.close()
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await served.http.ws_connect(served.client().url, origin="https://app.example.evil")


async def test_stopping_writes_what_came_and_closes_with_1001(served: Served) -> None:
    async with served.client() as one:
        text_of(one).insert(0, "last words")
        await one.until(lambda: one.updates > 1)
        await served.listener.stop()
        assert (await one.closed())[0] == 1001
    assert (await served.bench.node.session().call(requests.ReadDocumentJson("crew", "d"))) == requests.DocumentJson(
        b'{"t":"last words"}'
    )


async def test_a_bug_on_one_connection_closes_that_one_with_a_reason(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served.client() as one, served.client() as other, served.client() as unlucky:

        def fails(*_: object) -> None:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(yjs, "decode", fails)
            await unlucky.send(b"\x00\x00\x01\x00")
            assert await unlucky.closed() == (1011, "unexpected error")
        text_of(one).insert(0, "goes on")
        await other.until(lambda: str(text_of(other)) == "goes on")


async def test_an_update_with_very_many_items_is_written_in_pieces(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an editor that was offline for long. It is acknowledged once all of it is durable."""
    monkeypatch.setattr(items, "STRUCTS_MAX", 50)
    monkeypatch.setattr(yjs, "PIECE_STRUCTS", 20)
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    entries = doc.get("m", type=pycrdt.Map)
    for number in range(200):
        entries[str(number)] = number
    for number in range(0, 200, 2):
        del entries[str(number)]
    async with served.client() as one:
        await one.send(bytes([yjs.DURABLE]))
        await one.send(yjs.encode_update(doc.get_update()))
        await one.until(lambda: one.acknowledged >= 1)
        assert len((await served.json())["m"]) == 100


async def test_a_piece_that_is_refused_closes_its_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "STRUCTS_MAX", 50)
    monkeypatch.setattr(yjs, "PIECE_STRUCTS", 20)
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    entries = doc.get("m", type=pycrdt.Map)
    for number in range(100):
        entries[str(number)] = number
    doc.get("r", type=pycrdt.Text).insert(0, "x")
    async with served.client() as good, served.client() as bad:
        map_of(good, "r")["k"] = 1
        await good.until(lambda: good.updates > 1)
        await bad.send(yjs.encode_update(doc.get_update()))
        assert (await bad.closed())[0] == 4409
