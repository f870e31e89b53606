"""What a Yjs client sends is durable before it is relayed or acknowledged."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pycrdt
import pytest

from benchmarks import edits
from shoal.protocol import requests, yjs
from tests.api.yjs.conftest import MADE, PATIENCE_S, Serve, Served, map_of, text_of
from tests.support.yjs_client import YjsClient


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


@pytest.mark.answers("yjs-update-is-acknowledged-but-not-stored")
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


@pytest.mark.answers("yjs-update-is-acknowledged-but-not-stored")
async def test_ready_operations_are_acknowledged_once_durable(served: Served) -> None:
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
        assert "too many updates depend on others" in reason
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


def trace_of(name: str) -> edits.Trace:
    if name == "made":
        return MADE
    source = edits.directory()
    if source is None:
        pytest.skip("the traces are not there: see benchmarks/edits.py")
    return edits.read(source, edits.CONCURRENT)


def typed_by_two(trace: edits.Trace) -> list[list[bytes]]:
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
            edits.type_in(texts[agent], shown[agent], transaction)
        docs[agent].unobserve(observed)
        made += sent
        updates[agent] += sent
        known[agent] |= {*news, number}
    return updates


@pytest.mark.answers("yjs-update-is-acknowledged-but-not-stored")
@pytest.mark.parametrize("name", ["made", pytest.param("real", marks=pytest.mark.thorough)])
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


async def test_edits_sent_before_the_connection_broke_are_written(served: Served) -> None:
    one = served.client()
    await one.connect()
    text_of(one).insert(0, "kept")
    await one.disconnect()
    async with served.client() as late:
        await late.until(lambda: str(text_of(late)) == "kept")


async def test_repeated_requests_are_no_operation(served: Served) -> None:
    async with served.client() as one:
        map_of(one)["k"] = 1
        await one.until(lambda: one.updates > 1)
    count = served.bench.node.service._database.issuer.operations
    async with served.client(doc=one.doc) as again:
        await again.send(bytes([yjs.DURABLE]) + b"")
        await again.send(yjs.encode_update(one.doc.get_update()))
        await again.until(lambda: again.acknowledged >= 1)
    assert served.bench.node.service._database.issuer.operations == count
