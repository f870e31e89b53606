"""Who is here: awareness among Yjs clients."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest

from shoal.protocol import requests, yjs
from tests.api.yjs.conftest import Serve, Served
from tests.support.yjs_client import YjsClient


def awareness(client: int, clock: int, state: bytes) -> bytes:
    return yjs.encode_awareness([requests.Present(client, clock, state)])


def entries(client: YjsClient) -> list[tuple[int, int, bytes]]:
    """All that it was told of others, in order."""
    told = [entry for said in client.heard if isinstance(said, yjs.Awareness) for entry in said.entries]
    return [(entry.client, entry.clock, entry.state) for entry in told]


async def test_others_hear_a_clients_presence_now_and_later(served: Served) -> None:
    async with served.client() as one, served.client() as other:
        await one.send(awareness(7, 1, b'{"name":"Ada"}'))
        await other.until(lambda: (7, 1, b'{"name":"Ada"}') in entries(other))
        async with served.client() as late:
            await late.until(lambda: entries(late) == [(7, 1, b'{"name":"Ada"}')])
            await late.send(b"\x03")
            await late.until(lambda: entries(late) == [(7, 1, b'{"name":"Ada"}')] * 2)


@pytest.mark.parametrize("told", [b"null", b'{"name":"Eve"}'])
async def test_an_entry_is_bound_to_its_socket(served: Served, told: bytes) -> None:
    async with served.client() as one, served.client() as bad, served.client() as other:
        await one.send(awareness(7, 1, b'{"name":"Ada"}'))
        await bad.until(lambda: len(entries(bad)) == 1)
        await bad.send(awareness(7, 9, told))
        await bad.send(awareness(8, 1, b'"mark"'))
        await other.until(lambda: (8, 1, b'"mark"') in entries(other))
        assert (7, 9, told) not in entries(other)


async def test_a_client_that_left_returns_with_newer_clock(served: Served) -> None:
    async with served.client() as other:
        async with served.client() as one:
            await one.send(awareness(7, 4, b'{"name":"Ada"}'))
            await other.until(lambda: len(entries(other)) == 1)
        await other.until(lambda: entries(other)[-1] == (7, 4, b"null"))
        async with served.client() as again:
            await again.send(awareness(7, 4, b'{"name":"Ada"}'))
            await again.until(lambda: (7, 4, b"null") in entries(again))  # So that it says so with a newer clock.
            await again.send(awareness(7, 5, b'{"name":"Ada"}'))
            await other.until(lambda: entries(other)[-1] == (7, 5, b'{"name":"Ada"}'))
            await again.send(awareness(7, 5, b"null"))
            await other.until(lambda: entries(other)[-1] == (7, 5, b"null"))


async def test_presence_that_is_not_renewed_ends(serve: Serve) -> None:
    served = await serve(presence_timeout_s=0.1)
    async with served.client() as silent, served.client() as other:
        await silent.send(awareness(7, 1, b'"here"'))
        await other.until(lambda: len(entries(other)) == 1)
        served.bench.simulated.now_ms += 200
        await other.until(lambda: entries(other)[-1] == (7, 1, b"null"))


@pytest.mark.parametrize(
    ("message", "code"),
    [(awareness(7, 1, b"{no json"), 4400), (awareness(7, 1, b'"' + b"x" * 20_000 + b'"'), 4413), (b"\x01\x02\x09x", 4400)],
    ids=["no json", "too large", "cut short"],
)
async def test_awareness_that_would_break_others_closes_its_sender(served: Served, message: bytes, code: int) -> None:
    async with served.client() as bad, served.client() as other:
        await bad.send(message)
        assert (await bad.closed())[0] == code
        await other.send(awareness(8, 1, b'"mark"'))
        await other.until(lambda: entries(other) == [(8, 1, b'"mark"')])


async def test_an_agent_and_an_editor_see_each_other(served: Served) -> None:
    async with await served.bench.space.document("d") as document, served.client() as editor:
        await document.presence.set({"name": "critic"})
        await editor.until(lambda: (document.client_id, 1, b'{"name":"critic"}') in entries(editor))
        await editor.send(awareness(7, 1, b'{"name":"Ada"}'))
        members = document.presence.changes()
        found: dict[int, Any] = {}
        async for change in members:
            found[change.member.id] = change.member.state
            if len(found) == 2:
                break
        await members.aclose()
        assert found == {document.client_id: {"name": "critic"}, 7: {"name": "Ada"}}
        async with served.http.get(f"{served.listener.url}/v1/spaces/crew/documents/d/presence") as answer:
            assert sorted((await answer.json())["members"], key=lambda member: member["id"])[0] == {
                "id": 7,
                "state": {"name": "Ada"},
            }


async def authors(served: Served, document: str = "d") -> dict[int, str]:
    found = await served.bench.node.session().call(requests.ReadAuthors("crew", document))
    return {each.client: each.author for each in found.authors}


async def test_an_author_is_named_after_the_editor_has_left(served: Served) -> None:
    async with served.client() as one, served.client() as reader:
        await reader.send(awareness(9, 1, b'{"user":{"name":"Bo"}}'))
        await one.send(awareness(one.doc.client_id, 1, b'{"user":{"name":"Ada"}}'))
        await reader.until(lambda: one.doc.client_id in {client for client, *_ in entries(reader)})
        one.doc["text"] = text = pycrdt.Text()
        text += "hello"
        await reader.until(lambda: reader.updates > 0)
    assert await authors(served) == {one.doc.client_id: "Ada"}


async def test_nobody_names_the_client_of_another_connection(served: Served) -> None:
    async with served.client() as one, served.client() as bad:
        await one.send(awareness(one.doc.client_id, 1, b'{"name":"Ada"}'))
        await bad.until(lambda: len(entries(bad)) > 0)
        await bad.send(awareness(one.doc.client_id, 9, b'{"name":"Eve"}'))
        await bad.send(awareness(bad.doc.client_id, 1, b'{"name":"Eve"}'))
        await one.until(lambda: bad.doc.client_id in {client for client, *_ in entries(one)})
        bad.doc["text"] = theirs = pycrdt.Text()
        theirs += "x"
        await one.until(lambda: one.updates > 0)
        mine = one.doc.get("text", type=pycrdt.Text)
        mine += "y"
        await bad.until(lambda: "y" in str(theirs))
    assert await authors(served) == {one.doc.client_id: "Ada", bad.doc.client_id: "Eve"}


@pytest.mark.parametrize("state", [b"1", b'{"name":""}', b'{"name":"a\\u0000b"}', b'{"user":{"name":[1]}}', b'{"user":3}'])
async def test_a_presence_without_a_name_names_nobody(served: Served, state: bytes) -> None:
    async with served.client() as one, served.client() as other:
        await one.send(awareness(one.doc.client_id, 1, state))
        one.doc["text"] = text = pycrdt.Text()
        text += "hello"
        await other.until(lambda: other.updates > 0)
    assert await authors(served) == {}
