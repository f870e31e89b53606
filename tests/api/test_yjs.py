"""The door for standard Yjs clients, over a real node and real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import aiohttp
import pycrdt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import traces
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.crdt.document.yjs import parse_state
from shoal.errors import ReadOnly
from shoal.protocol import requests, yjs
from tests.node.conftest import Bench, Opener, bench, open_bench
from tests.support.yjs_client import YjsClient

__all__ = ["bench", "open_bench"]

PATIENCE_S = 30

MADE = traces.parse(
    {
        "numAgents": 2,
        "endContent": "hé two wörlds!",
        "txns": [
            {"agent": 0, "parents": [], "patches": [[0, 0, "hé wörld"]]},
            {"agent": 0, "parents": [0], "patches": [[8, 0, "!"]]},
            {"agent": 1, "parents": [0], "patches": [[2, 0, " two"]]},
            {"agent": 1, "parents": [1, 2], "patches": [[12, 0, "s"]]},
        ],
    }
)


class Served:
    """A node behind a listener."""

    def __init__(self, bench: Bench, listener: Listener, http: aiohttp.ClientSession) -> None:
        self.bench, self.listener, self.http = bench, listener, http

    def client(self, document: str = "d", *, doc: pycrdt.Doc[Any] | None = None) -> YjsClient:
        url = self.listener.url.replace("http:", "ws:")
        return YjsClient(self.http, f"{url}/v1/yjs/crew/{document}", doc=doc)

    async def json(self, document: str = "d") -> Any:
        async with self.http.get(f"{self.listener.url}/v1/spaces/crew/documents/{document}") as answer:
            return await answer.json()


class Serve(Protocol):
    async def __call__(self, **settings: Any) -> Served: ...


@pytest.fixture
async def serve(open_bench: Opener) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Served:
            bench = open_bench(listen_port=0, stop_timeout_s=5.0, **settings)
            app = create_app(bench.node.session, config=bench.config, node="ab12", version="0", now_s=time.time)
            listener = Listener(app, config=bench.config)
            await listener.start()
            stack.push_async_callback(listener.stop)
            return Served(bench, listener, await stack.enter_async_context(aiohttp.ClientSession()))

        yield start


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


def text_of(client: YjsClient, name: str = "t") -> pycrdt.Text:
    root: pycrdt.Text = client.doc.get(name, type=pycrdt.Text)
    return root


async def seen(client: YjsClient, key: str, value: str) -> None:
    await client.until(lambda: bool(map_of(client).get(key) == value))


def map_of(client: YjsClient, name: str = "m") -> pycrdt.Map[Any]:
    root: pycrdt.Map[Any] = client.doc.get(name, type=pycrdt.Map)
    return root


# ── what clients share ────────────────────────────────────────────────────────


async def test_what_one_client_edits_the_others_see_and_the_node_keeps(served: Served) -> None:
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


async def test_what_was_edited_offline_arrives_with_the_answer_to_step_1(served: Served) -> None:
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


# ── durability ────────────────────────────────────────────────────────────────


async def test_nothing_is_relayed_before_it_is_durable(served: Served) -> None:
    async with served.client() as one, served.client() as other:
        served.bench.simulated.hold_syncs()
        text_of(one).insert(0, "x")
        while not served.bench.node.writes_pending:
            await asyncio.sleep(0)
        for _ in range(3):
            async with served.http.get(f"{served.listener.url}/healthz"):
                assert str(text_of(other)) == ""
        served.bench.simulated.release_syncs()
        await other.until(lambda: str(text_of(other)) == "x")


async def test_a_burst_of_many_is_few_operations(served: Served) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client()) for _ in range(8)]
        before = served.bench.node.service._database.issuer.operations
        for number in range(25):
            for index, client in enumerate(clients):
                map_of(client)[f"{index}-{number}"] = number
        for client in clients:
            await client.until(lambda client=client: len(map_of(client)) == 200)  # type: ignore[misc]
        assert served.bench.node.service._database.issuer.operations - before < 100


async def test_a_client_that_asks_hears_what_is_durable(served: Served) -> None:
    async with served.client() as one, served.client() as plain:
        await one.send(bytes([yjs.DURABLE]))
        for number in range(5):
            map_of(one)[str(number)] = number
        await one.until(lambda: one.acknowledged >= 5)
        await plain.until(lambda: len(map_of(plain)) == 5)
        assert plain.acknowledged == 0, "nobody else is told"
        state = await served.bench.node.session().call(requests.ReadDocumentJson("crew", "d"))
        assert isinstance(state, requests.DocumentJson)


def typed(characters: str) -> list[bytes]:
    """Updates that each build on the one before."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    updates: list[bytes] = []
    doc.observe(lambda event: updates.append(event.update))
    text = doc.get("t", type=pycrdt.Text)
    for character in characters:
        text += character
    return updates


async def bare(stack: AsyncExitStack, served: Served) -> YjsClient:
    """A client that wants acknowledgements; its own document stays empty, so that it has nothing to give if the node asks."""
    client = served.client()
    await client.connect(synchronise=False)
    stack.push_async_callback(client.disconnect)
    await client.send(bytes([yjs.DURABLE]))
    return client


@pytest.mark.parametrize("order", ["reversed", "halves", "one too late"])
async def test_updates_out_of_order_are_all_acknowledged(served: Served, order: str) -> None:
    updates = typed("hello world")
    halves = updates[5:] + updates[:5]
    sent = {"reversed": updates[::-1], "halves": halves, "one too late": updates[1:] + updates[:1]}[order]
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one = await bare(stack, served)
        for update in sent:
            await one.send(yjs.encode_update(update))
        await one.until(lambda: one.acknowledged == len(sent) + one.answers)
    assert await served.json() == {"t": "hello world"}


async def test_an_update_that_is_not_stored_is_not_acknowledged_and_neither_is_the_count_past_it(served: Served) -> None:
    first, second, third = typed("abc")
    own = typed("xyz")
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one, other = await bare(stack, served), await bare(stack, served)
        await one.send(yjs.encode_update(own[0]))
        await one.until(lambda: one.acknowledged == 1)
        await one.send(yjs.encode_update(second))  # Builds on what nobody has sent yet.
        for update in own[1:]:
            await one.send(yjs.encode_update(update))
        while await served.json() != {"t": "xyz"}:
            await asyncio.sleep(0)
        await other.send(yjs.encode_update(third))
        assert (one.acknowledged, other.acknowledged) == (1, 0)
        await other.send(yjs.encode_update(first))
        await one.until(lambda: one.acknowledged == 4 + one.answers)
        await other.until(lambda: other.acknowledged == 2 + other.answers)
    assert len((await served.json())["t"]) == 6


async def test_what_becomes_ready_is_acknowledged_once_it_is_durable(served: Served) -> None:
    first, second = typed("ab")
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one, other = await bare(stack, served), await bare(stack, served)
        await one.send(yjs.encode_update(second))
        await one.until(lambda: one.answers == 1)
        served.bench.simulated.hold_syncs()
        await other.send(yjs.encode_update(first))
        while not served.bench.node.writes_pending:
            await asyncio.sleep(0)
        for _ in range(3):
            assert (await served.json("another"))["status"] == 404
        assert (one.acknowledged, other.acknowledged) == (0, 0)
        served.bench.simulated.release_syncs()
        await one.until(lambda: one.acknowledged == 2)
        await other.until(lambda: other.acknowledged == 1)


async def test_an_update_that_another_node_makes_ready_is_acknowledged(served: Served) -> None:
    """As by replication: what it builds on comes by another way than this door."""
    first, second = typed("ab")
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one = await bare(stack, served)
        await one.send(yjs.encode_update(second))
        await one.until(lambda: one.answers == 1)
        await served.bench.node.session().call(requests.Update("crew", "d", first, {"t": "text"}))
        await one.until(lambda: one.acknowledged == 2)


async def test_past_the_bound_an_early_update_closes_its_connection_and_nothing_is_lost(serve: Serve) -> None:
    served = await serve(yjs_early_bytes_max=2000)
    updates = typed("x" * 20)
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one, other = await bare(stack, served), await bare(stack, served)
        for update in updates[1:]:
            await one.send(yjs.encode_update(update))
        code, reason = await one.closed()
        assert code == 1013
        assert "yjs_early_bytes_max" in reason
        for update in updates:
            await other.send(yjs.encode_update(update))
        await other.until(lambda: other.acknowledged == len(updates))


async def test_acknowledgements_count_from_the_last_time_a_client_asked(served: Served) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        one = await bare(stack, served)
        for update in typed("ab"):
            await one.send(yjs.encode_update(update))
        await one.until(lambda: one.acknowledged == 2)
        await one.send(bytes([yjs.DURABLE]))
        for update in typed("c"):
            await one.send(yjs.encode_update(update))
        await one.until(lambda: one.acknowledged == 1)


def trace_of(name: str) -> traces.Trace:
    if name == "made":
        return MADE
    source = traces.directory()
    if source is None:
        pytest.skip("the traces are not there: see benchmarks/traces.py")
    return traces.read(source, traces.CONCURRENT)


def typed_by_two(trace: traces.Trace) -> list[list[bytes]]:
    """For each author the updates that they sent, one for each transaction."""
    docs: list[pycrdt.Doc[Any]] = [pycrdt.Doc(client_id=number + 1) for number in range(trace.agents)]
    updates: list[list[bytes]] = [[] for _ in docs]
    texts = [doc.get("t", type=pycrdt.Text) for doc in docs]
    shown = [bytearray() for _ in docs]
    made: list[bytes] = []
    known: list[set[int]] = [set() for _ in docs]
    for number, transaction in enumerate(trace.transactions):
        agent = transaction.agent
        todo, news = list(transaction.parents), set[int]()
        while todo:
            parent = todo.pop()
            if parent not in known[agent] and parent not in news:
                news.add(parent)
                todo += trace.transactions[parent].parents
        for parent in sorted(news):
            docs[agent].apply_update(made[parent])
        if news:
            shown[agent][:] = str(texts[agent]).encode()
        sent: list[bytes] = []
        observed = docs[agent].observe(lambda event, sent=sent: sent.append(event.update))
        with docs[agent].transaction():
            traces.type_in(texts[agent], shown[agent], transaction)
        docs[agent].unobserve(observed)
        made += sent
        updates[agent] += sent
        known[agent] |= {*news, number}
    return updates


@pytest.mark.parametrize("name", ["made", "real"])
async def test_two_authors_that_send_as_fast_as_they_can_hear_of_every_update(served: Served, name: str) -> None:
    """Neither waits for the other's, so that much of what they send builds on what is still on its way."""
    trace = trace_of(name)
    updates = typed_by_two(trace)
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S * 10):
        authors = [await bare(stack, served) for _ in updates]

        async def send(author: YjsClient, theirs: list[bytes]) -> None:
            for update in theirs:
                await author.send(yjs.encode_update(update))
            await author.until(lambda: author.acknowledged == len(theirs) + author.answers)

        await asyncio.gather(*(send(author, theirs) for author, theirs in zip(authors, updates, strict=True)))
    assert await served.json() == {"t": trace.end}


async def test_what_was_sent_before_the_connection_broke_is_written(served: Served) -> None:
    one = served.client()
    await one.connect()
    text_of(one).insert(0, "kept")
    await one.disconnect()
    async with served.client() as late:
        await late.until(lambda: str(text_of(late)) == "kept")


async def test_what_is_sent_again_is_no_operation(served: Served) -> None:
    async with served.client() as one:
        map_of(one)["k"] = 1
        await one.until(lambda: one.updates > 1)
    count = served.bench.node.service._database.issuer.operations
    async with served.client(doc=one.doc) as again:
        await again.send(bytes([yjs.DURABLE]) + b"")
        await again.send(yjs.encode_update(one.doc.get_update()))
        await again.until(lambda: again.acknowledged >= 1)
    assert served.bench.node.service._database.issuer.operations == count


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


# ── refusals ──────────────────────────────────────────────────────────────────


def nested_document() -> bytes:
    """An update that no document holds: a document within a map."""
    return bytes([1, 1, 3, 0, 0x20 | 9, 1, 1]) + b"x" + b"\1k" + b"\1d" + bytes([118, 0]) + b"\0"


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (b"\x00\x02\x05ab", 1007, "ends too early"),
        (b"\x00\x02\x02\xff\xff", 1007, "Yjs"),
        (yjs.encode_update(nested_document()), 1007, "sub-documents"),
        (yjs.encode_update(bytes([1, 1, 5, 0, 7, 1, 1, 120, 5, 1, 104, 0])), 1007, "XML hook"),
        (b"\x00\x05", 1007, "unknown kind"),
        (yjs.encode_step_1(b"\xff"), 1007, "ends too early"),
        (yjs.encode_update(b"\x00" * (1 << 16)), 1009, ""),
    ],
)
async def test_what_is_malformed_closes_that_connection_alone(serve: Serve, message: bytes, code: int, reason: str) -> None:
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
        assert (await bad.closed())[0] == 1007
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
            assert code == 1008
            assert "another kind" in reason


async def test_who_edited_what_was_deleted_is_closed_and_restores_nothing(served: Served) -> None:
    async with served.client() as one:
        text_of(one).insert(0, "deleted")
        await one.until(lambda: one.updates > 1)
        await served.bench.node.session().call(requests.DeleteDocument("crew", "d"))
        code, reason = await one.closed()
        assert code == 1008
        assert "deleted" in reason
    again = served.client(doc=one.doc)
    await again.connect()
    assert (await again.closed())[0] == 1008
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


# ── slow clients ──────────────────────────────────────────────────────────────


async def test_one_stalled_client_among_fifty_is_bounded_and_catches_up_once_it_reads(serve: Serve) -> None:
    budget = 2 << 20  # The document is smaller, what passes through it six times as large.
    served = await serve(yjs_send_bytes_max=budget)
    async with AsyncExitStack() as stack:
        stalled = await stack.enter_async_context(served.client())
        clients = [await stack.enter_async_context(served.client()) for _ in range(49)]
        stalled.reading.clear()
        stalled.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        connections = list(next(iter(served.listener._yjs._rooms.values()))._guests)
        for number in range(160):
            key, value = f"k{number % 20}", f"{number}" + "x" * 65_536
            map_of(clients[number % 49])[key] = value
            for client in clients:
                await seen(client, key, value)
            assert all(c._waiting_bytes + c._held_bytes <= budget for c in connections)  # type: ignore[attr-defined]
        assert any(c._missed for c in connections)  # type: ignore[attr-defined]
        stalled.socket._response.connection.transport.resume_reading()  # type: ignore[union-attr]
        stalled.reading.set()
        await stalled.until(lambda: parse_state(stalled.doc.get_state()) == parse_state(clients[0].doc.get_state()))
        assert map_of(stalled).to_py() == map_of(clients[0]).to_py()


async def test_a_client_that_never_reads_again_is_cut_off(serve: Serve) -> None:
    served = await serve(yjs_send_bytes_max=1 << 14, yjs_stalled_s=0.2)
    async with served.client() as stalled, served.client() as one:
        stalled.reading.clear()
        stalled.socket._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        number = 0
        while len(served.listener._yjs._open) == 2:
            map_of(one)["k"] = f"{number}" + "x" * 262_144
            await one.until(lambda number=number: one.updates > number)  # type: ignore[misc]
            number += 1
        stalled.reading.set()
        stalled.socket._response.connection.transport.resume_reading()  # type: ignore[union-attr]


# ── awareness ─────────────────────────────────────────────────────────────────


def awareness(client: int, clock: int, state: bytes) -> bytes:
    return yjs.encode_awareness([requests.Present(client, clock, state)])


def entries(client: YjsClient) -> list[tuple[int, int, bytes]]:
    """All that it was told of others, in order."""
    told = [entry for said in client.heard if isinstance(said, yjs.Awareness) for entry in said.entries]
    return [(entry.client, entry.clock, entry.state) for entry in told]


async def test_what_one_says_of_itself_the_others_hear_now_and_later(served: Served) -> None:
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


async def test_who_leaves_is_gone_at_an_equal_clock_and_comes_back_with_a_newer_one(served: Served) -> None:
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


async def test_who_does_not_renew_is_gone(serve: Serve) -> None:
    served = await serve(presence_timeout_s=0.1)
    async with served.client() as silent, served.client() as other:
        await silent.send(awareness(7, 1, b'"here"'))
        await other.until(lambda: len(entries(other)) == 1)
        served.bench.simulated.now_ms += 200
        await other.until(lambda: entries(other)[-1] == (7, 1, b"null"))


@pytest.mark.parametrize(
    ("message", "code"),
    [(awareness(7, 1, b"{no json"), 1007), (awareness(7, 1, b'"' + b"x" * 20_000 + b'"'), 1009), (b"\x01\x02\x09x", 1007)],
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ALTERED, min_size=1, max_size=5))
async def test_whatever_is_sent_only_its_sender_is_closed(served: Served, messages: list[bytes]) -> None:
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
