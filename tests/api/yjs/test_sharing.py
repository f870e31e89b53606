"""What standard Yjs clients share through a node."""

from __future__ import annotations

import asyncio
from typing import Any

import pycrdt
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shoal.node.session import ServiceSession
from shoal.protocol import requests, yjs
from tests.api.yjs.conftest import Served, map_of, text_of
from tests.support.examples import examples
from tests.support.yjs_client import YjsClient

# ── what clients share ────────────────────────────────────────────────────────


async def test_edits_of_one_client_reach_node_and_clients(served: Served) -> None:
    async with served.client() as one, served.client() as other:
        text_of(one).insert(0, "é😀")
        map_of(other)["k"] = {"v": 1}
        other.doc.get("a", type=pycrdt.Array).append(2)
        await one.until(lambda: "k" in map_of(one))
        await other.until(lambda: str(text_of(other)) == "é😀")
        await one.until(lambda: len(one.doc.get("a", type=pycrdt.Array)) == 1)
    assert await served.json() == {"a": [2], "m": {"k": {"v": 1}}, "t": "é😀"}


async def test_a_client_that_comes_later_has_all_of_it(served: Served) -> None:
    async with served.client() as one, served.client() as witness:
        text_of(one).insert(0, "written before")
        await witness.until(lambda: str(text_of(witness)) != "")
    async with served.client() as late:
        assert str(text_of(late)) == "written before"


async def test_offline_edits_arrive_with_the_answer_to_step_1(served: Served) -> None:
    async with served.client() as one, served.client() as witness:
        text_of(one).insert(0, "ab")
        await witness.until(lambda: str(text_of(witness)) == "ab")
        await one.disconnect()
        text_of(one).insert(1, "offline")
        text_of(witness).insert(2, "!")
        await one.connect()
        await one.until(lambda: str(text_of(one)) == "aofflineb!")
        await witness.until(lambda: str(text_of(witness)) == "aofflineb!")


async def test_a_document_of_shoal_and_a_standard_client_are_one(served: Served) -> None:
    async with await served.bench.space.document("d") as mirror, served.client() as editor:
        mirror.map("m")["agent"] = 1
        await editor.until(lambda: "agent" in map_of(editor))
        map_of(editor)["editor"] = 2
        text_of(editor).insert(0, "hello")
        await editor.until(lambda: "t" in mirror.roots)
        assert mirror.roots == {"m": "map", "t": "text"}
        assert mirror.to_py() == {"m": {"agent": 1, "editor": 2}, "t": "hello"}


async def test_a_name_is_percent_encoded(served: Served) -> None:
    async with served.client("a%2Fb%20c") as one:
        map_of(one)["k"] = 1
        await one.until(lambda: one.updates > 1)
    assert await served.json("a%2Fb%20c") == {"m": {"k": 1}}


async def test_an_editors_xml_is_shared_shown_and_edited(served: Served) -> None:
    def page(client: YjsClient) -> pycrdt.XmlFragment:
        root: pycrdt.XmlFragment = client.doc.get("page", type=pycrdt.XmlFragment)
        return root

    async with served.client() as one, served.client() as other:
        text = page(one).children.append(pycrdt.XmlElement("p", {"align": "left"})).children.append("hello")
        await other.until(lambda: str(page(other)) == '<p align="left">hello</p>')
        text.insert(5, "!", {"strong": {}})
        await other.until(lambda: "strong" in str(page(other)))
        runs = [{"insert": "hello"}, {"insert": "!", "attributes": {"strong": {}}}]
        shown = {"page": [{"tag": "p", "attributes": {"align": "left"}, "children": [{"text": runs, "attributes": {}}]}]}
        assert await served.json() == shown
        patch = [{"op": "add", "path": "/page/-", "value": {"tag": "hr"}}, {"op": "remove", "path": "/page/0/attributes/align"}]
        url = f"{served.listener.url}/v1/spaces/crew/documents/d"
        async with served.http.patch(url, json=patch) as answer:
            assert answer.status == 200
        await other.until(lambda: str(page(other)) == "<p>hello<strong>!</strong></p><hr></hr>")


# ── whatever the bytes ────────────────────────────────────────────────────────


def real_messages() -> list[bytes]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=9)
    doc.get("m", type=pycrdt.Map)["k"] = {"v": [1, "é", None]}
    doc.get("t", type=pycrdt.Text).insert(0, "hello")
    entry = yjs.encode_awareness([requests.Present(9, 1, b'{"name":"x"}')])
    return [yjs.encode_step_1(doc.get_state()), yjs.encode_step_2(doc.get_update()), yjs.encode_update(doc.get_update()), entry]


ALTERED = st.builds(
    lambda message, cut, flips: bytes(
        byte ^ flips.get(index, 0) for index, byte in enumerate(message[: max(1, len(message) - cut)])
    ),
    st.sampled_from(real_messages()),
    st.integers(0, 40),
    st.dictionaries(st.integers(0, 80), st.integers(1, 255), max_size=4),
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ALTERED, min_size=1, max_size=5))
async def test_bad_frames_close_their_sender_alone(served: Served, messages: list[bytes]) -> None:
    async with served.client("fuzzed") as one, served.client("fuzzed") as other:
        bad = served.client("fuzzed")
        await bad.connect(synchronise=False)
        for message in messages:
            if not bad.socket.closed:
                await bad.send(message)
        key = f"k{one.doc.client_id}"
        map_of(one, "sound")[key] = 1
        await other.until(lambda: key in map_of(other, "sound"))
        assert one.close_code is None
        assert other.close_code is None
        await bad.disconnect()


async def test_the_room_is_gone_once_everybody_left(served: Served) -> None:
    async with served.client() as one:
        map_of(one)["k"] = 1
        await one.until(lambda: one.updates > 1)
        assert len(served.listener._yjs._rooms) == 1
    while served.listener._yjs._rooms:
        await asyncio.sleep(0)
    assert len(served.bench.node.service._feed) == 0


async def test_updates_during_an_answer_are_relayed_after_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made, gate = asyncio.Event(), asyncio.Event()
    call = ServiceSession.call

    async def late(self: ServiceSession, request: Any, /, **options: Any) -> Any:
        reply = await call(self, request, **options)
        if isinstance(request, requests.ReadDocument) and not made.is_set():
            made.set()
            await gate.wait()
        return reply

    async with served.client() as one, served.client() as witness:
        monkeypatch.setattr(ServiceSession, "call", late)
        socket = await served.connect("/v1/yjs/crew/d")
        await socket.send_bytes(yjs.encode_step_1(b"\x00"))
        await made.wait()
        text_of(one).insert(0, "late")
        await witness.until(lambda: str(text_of(witness)) == "late")
        gate.set()
        got: list[bytes] = []
        while not got or got[-1] != b"\x00\x02":  # An update.
            got.append((await socket.receive_bytes(timeout=30))[:2])
    assert b"\x00\x01" in got[:-1], "the answer came first"
