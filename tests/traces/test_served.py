"""The trace of a request from a client to a node: over a session, over HTTP, and over a Yjs socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pycrdt
import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, Sampler, SamplingResult, TraceIdRatioBased

import shoal
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from shoal.errors import NotFound
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.protocol.frames import PROTOCOL, Hello, encode_call, encode_hello, messages
from shoal.protocol.requests import Add, CounterValue, ReadCounter
from shoal.protocol.tracing import NOT_RECORDED, TRACE_CHARS_MAX, carried_of, carrying
from shoal.traces.agents import entered
from shoal.traces.provider import Tracing
from shoal.transport import link
from shoal.transport.link import Link
from tests.traces.recording import SAMPLED, UNSAMPLED, Recorded, attributes, recording

WRITE = ["shoal.queue", "shoal.decide", "shoal.commit"]
TRACE, PARENT = int(SAMPLED[3:35], 16), int(SAMPLED[36:52], 16)
HOSTILE = {
    "too long": SAMPLED + "0",
    "very long": SAMPLED + "-" + "0" * 3000,
    "of no trace": "00-" + "0" * 32 + SAMPLED[35:],
    "of no span": SAMPLED[:36] + "0" * 16 + "-01",
    "of a forbidden version": "ff" + SAMPLED[2:],
    "in capitals": SAMPLED.upper(),
    "not hexadecimal": SAMPLED.replace("4bf9", "xyz!"),
    "of another script": SAMPLED.replace("4bf9", "٤bf9"),
    "empty": "",
    "cut": SAMPLED[:-1],
}


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[str]:
    """A node and its listener; its URL."""
    config = Config(listen_port=0)
    node = await open_node(data, config=config, environment=system_environment())
    listener = Listener(create_app(node.session, config=config, node="ab12", version="0.1.0", now_s=time.time), config=config)
    await listener.start()
    try:
        yield listener.url
    finally:
        await listener.stop()
        await node.stop()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path) as at:
        yield at


def indented(lines: list[str], depth: int) -> list[str]:
    return ["  " * depth + line for line in lines]


async def test_a_save_is_one_trace_from_client_to_disk(url: str, recorded: Recorded) -> None:
    async with shoal.connect(url) as store:
        thread = store.space("crew").thread("t")
        await thread.save({"a": 1})
        await thread.load()
    assert recorded.tree() == [
        "shoal save (client)",
        "  shoal save (server)",
        *indented(WRITE, 2),
        "shoal load (client)",
        "  shoal load (server)",
        "    shoal.queue",
    ]
    assert len({span.context.trace_id for span in recorded.spans}) == 2
    server = next(span for span in recorded.named("shoal save") if span.kind.name == "SERVER")
    assert server.parent is not None
    assert server.parent.is_remote


async def test_a_request_that_fails_fails_at_both_sides(url: str, recorded: Recorded) -> None:
    async with shoal.connect(url) as store:
        with pytest.raises(NotFound):
            await store.space("crew").thread("none").load()
    assert [(span.kind.name, attributes(span)["error.type"]) for span in recorded.named("shoal load")] == [
        ("CLIENT", "not-found"),
        ("SERVER", "not-found"),
    ]


class Reluctant(Sampler):
    """Records all but what it is asked about first."""

    def __init__(self) -> None:
        self.asked = 0

    def should_sample(self, *details: Any, **named: Any) -> SamplingResult:
        self.asked += 1
        return SamplingResult(Decision.DROP if self.asked == 1 else Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "reluctant"


async def test_a_caller_that_is_not_sampled_decides_that_for_the_node(url: str) -> None:
    sampler = Reluctant()
    with recording(sampler=sampler) as recorded:
        async with shoal.connect(url) as store:
            thread = store.space("crew").thread("t")
            await thread.save({"a": 1})
            assert (sampler.asked, recorded.spans) == (1, [])
            await thread.save({"a": 2})
    assert recorded.tree()[:2] == ["shoal save (client)", "  shoal save (server)"]


async def test_a_client_that_records_nothing_says_so_in_one_character(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def encoded(*arguments: Any, trace: str = "", **named: Any) -> bytes:
        sent.append(trace)
        return encode_call(*arguments, trace=trace, **named)

    monkeypatch.setattr(link, "encode_call", encoded)
    async with shoal.connect(url) as store:
        with recording(sampler=TraceIdRatioBased(0.0)) as recorded:
            await store.space("crew").counter("n").add(1)
        await store.space("crew").counter("n").add(1)
    assert (recorded.spans, sent) == ([], [NOT_RECORDED, ""])


async def test_a_node_makes_nothing_for_a_client_that_records_nothing(url: str, recorded: Recorded) -> None:
    token = carrying.set(NOT_RECORDED)
    there = await Link.dial(url, config=Config())
    try:
        await there.call(Add("crew", "n", 1))
        assert await there.call(ReadCounter("crew", "n")) == CounterValue(1)
    finally:
        carrying.reset(token)
        await there.close()
    assert recorded.spans == []


async def test_calls_within_a_span_that_is_not_sampled_make_none(url: str, recorded: Recorded) -> None:
    context = Tracing(recorded.provider).remote(carried_of(UNSAMPLED))
    async with shoal.connect(url) as store:
        with entered(context):
            await store.space("crew").thread("t").save({"a": 1})
            await store.space("crew").thread("t").step("pay", call=lambda: 7)
    assert recorded.spans == []


async def test_tracestate_reaches_the_node(url: str, recorded: Recorded) -> None:
    answer = await get(url, {"traceparent": SAMPLED, "tracestate": "vendor=a,other=b"})
    assert answer == 200
    door = recorded.spans[0]
    assert door.context.trace_id == TRACE
    assert door.context.trace_state.to_header() == "vendor=a,other=b"


async def get(url: str, headers: dict[str, str]) -> int:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{url}/v1/spaces/crew/counters/tokens", headers=headers) as response,
    ):
        return response.status


async def test_a_request_over_http_continues_the_callers_trace(url: str, recorded: Recorded) -> None:
    assert await get(url, {"traceparent": SAMPLED, "X-Request-Id": "mine"}) == 200
    assert recorded.tree() == [
        "GET /v1/spaces/{space}/counters/{counter} (server)",
        "  shoal read-counter",
        "    shoal.queue",
    ]
    door = recorded.spans[0]
    assert door.parent is not None
    assert (door.context.trace_id, door.parent.span_id) == (TRACE, PARENT)
    assert attributes(door) == {
        "http.request.method": "GET",
        "http.route": "/v1/spaces/{space}/counters/{counter}",
        "http.response.status_code": 200,
        "shoal.request_id": "mine",
    }


async def test_a_request_over_http_that_is_not_sampled_has_no_span(url: str) -> None:
    with recording(sampler=ALWAYS_ON) as recorded:
        assert await get(url, {"traceparent": UNSAMPLED}) == 200
    assert recorded.spans == []


@pytest.mark.answers("trace-fails-a-request")
@pytest.mark.parametrize("parent", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_traceparent_over_http_is_ignored(url: str, recorded: Recorded, parent: str) -> None:
    assert await get(url, {"traceparent": parent, "tracestate": "x" * 2000}) == 200
    assert recorded.spans[0].parent is None
    assert recorded.spans[0].context.trace_id != TRACE


@pytest.mark.answers("trace-fails-a-request")
@pytest.mark.parametrize("text", [*HOSTILE.values(), SAMPLED + " " + "x" * 600], ids=[*HOSTILE, "with a long tracestate"])
async def test_a_hostile_trace_in_a_frame_is_ignored(url: str, recorded: Recorded, text: str) -> None:
    there = await Link.dial(url, config=Config())
    token = carrying.set(text)
    try:
        assert await there.call(ReadCounter("crew", "tokens")) == CounterValue(0)
    finally:
        carrying.reset(token)
        await there.close()
    server = recorded.one("shoal read-counter")
    assert server.parent is None
    assert server.context.trace_id != TRACE


async def test_a_long_tracestate_is_dropped_alone(url: str, recorded: Recorded) -> None:
    assert await get(url, {"traceparent": SAMPLED, "tracestate": "v=" + "x" * TRACE_CHARS_MAX}) == 200
    assert recorded.spans[0].context.trace_id == TRACE
    assert not recorded.spans[0].context.trace_state


async def test_looks_at_health_and_metrics_make_no_spans(url: str, recorded: Recorded) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with http.get(url + path, headers={"traceparent": SAMPLED}) as response:
                assert response.status == 200
    assert [span.name for span in recorded.spans if "GET" in span.name] == []


@pytest.mark.parametrize("where", ["header", "query"])
async def test_an_edit_over_yjs_belongs_to_the_trace_of_the_socket(url: str, recorded: Recorded, where: str) -> None:
    document: pycrdt.Doc[Any] = pycrdt.Doc()
    document["text"] = pycrdt.Text("hello")
    update = pycrdt.create_update_message(document.get_update())
    headers, query = ({"traceparent": SAMPLED}, {}) if where == "header" else ({}, {"traceparent": SAMPLED})
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/v1/yjs/crew/plan", headers=headers, params=query) as socket,
    ):
        await socket.send_bytes(update)
        while not [span for span in recorded.spans if "shoal.commit" in span.name]:
            await asyncio.sleep(0.01)
    written = next(span for span in recorded.spans if span.kind.name == "SERVER")
    assert written.context.trace_id == TRACE


async def test_a_slow_request_is_named_by_its_trace(url: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.api.health.EXEMPLAR_S", 0.0)
    async with shoal.connect(url) as store:
        await store.space("crew").counter("tokens").add(1)
    [trace] = {f"{span.context.trace_id:032x}" for span in recorded.named("shoal add")}
    async with (
        aiohttp.ClientSession() as http,
        http.get(url + "/metrics", headers={"Accept": "application/openmetrics-text"}) as response,
    ):
        told = await response.text()
    assert f'trace_id="{trace}"' in told


class Started(SpanProcessor):
    """Notes the names of the spans that begin."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, span: Any, parent_context: object = None) -> None:
        self.names.append(f"{span.name} ({span.kind.name.lower()})")


async def test_a_request_that_needs_a_task_begins_one_span(url: str, recorded: Recorded) -> None:
    started = Started()
    recorded.provider.add_span_processor(started)
    async with shoal.connect(url) as store:
        await store.space("crew").counter("tokens").value()
    assert started.names == ["shoal read-counter (client)", "shoal read-counter (server)", "shoal.queue (internal)"]


async def test_the_trace_of_a_frame_counts_before_that_of_its_socket(url: str, recorded: Recorded) -> None:
    own = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{url}/v1/session", headers={"traceparent": SAMPLED}) as socket,
    ):
        await socket.send_bytes(encode_hello(Hello(PROTOCOL, "test")))
        await socket.receive_bytes()
        for id, trace in ((1, own), (2, "")):
            [message] = messages([encode_call(id, ReadCounter("crew", "tokens"), trace=trace)], bytes_max=1 << 20)
            await socket.send_bytes(message)
            await socket.receive_bytes()
    assert [span.context.trace_id for span in recorded.named("shoal read-counter")] == [int("1" * 32, 16), TRACE]
