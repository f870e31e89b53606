"""Anything may be sent, before a token is given and after: the node answers, writes nothing that is not granted, and lives."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import shoal
from shoal.access.grants import needs
from shoal.config import Config
from shoal.node.environment import system_environment
from shoal.node.node import open_node
from shoal.protocol import requests
from shoal.protocol.frames import PROTOCOL, Hello, encode_call, encode_hello, messages
from shoal.protocol.requests import Request
from tests.access.conftest import Made, Mint
from tests.access.requests_of_each_kind import kinds, made
from tests.support.examples import examples

FUZZ = examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Node:
    """A node on a loop of its own, a token that may read one space, and one that may do everything."""

    def __init__(self, directory: Path) -> None:
        from shoal.cli.serving import access_of, listening

        self.loop = asyncio.new_event_loop()
        mint = Mint(directory / "tokens")
        config = msgspec.structs.replace(
            Config(),
            listen_port=0,
            token_keys=mint.keys,
            token_failures_max=1_000_000,
            journal_wait_s_max=0.01,
            lease_poll_s=0.01,
        )
        self.reader, self.whole = mint.make("crew:read"), mint.make("*:admin")

        async def start() -> None:
            self.node = await open_node(directory / "state", config=config, environment=system_environment())
            access = access_of(config)
            assert access is not None
            await access.start(self.node.session())
            self.access = access
            self.listener = await listening(self.node, config, None, None, access)

        self.run(start())
        self.url = self.listener.url
        self.port = int(self.url.rpartition(":")[2])

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def stop(self) -> None:
        async def stop() -> None:
            await self.listener.stop()
            await self.access.stop()
            await self.node.stop()

        self.run(stop())
        self.loop.close()

    async def objects(self) -> list[str]:
        async with shoal.connect(self.url, token=self.whole.text) as store:
            return [space async for space in store.spaces()]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    started = Node(tmp_path_factory.mktemp("fuzz"))
    yield started
    assert started.run(started.objects()) == []  # Nothing was written.
    started.stop()


LINE = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=60)


@pytest.mark.answers("requests-need-their-right", note="anything that may be sent")
@FUZZ
@given(
    path=st.sampled_from(["/v1/spaces", "/v1/access", "/metrics", "/v1/cluster", "/v1/session", "/v1/spaces/crew/counters/n"]),
    scheme=st.sampled_from(["Bearer ", "bearer ", "Basic ", "", "Bearer"]),
    header=LINE,
    cookie=LINE,
    protocol=LINE,
)
def test_no_header_lets_anybody_in_or_breaks_the_node(
    node: Node, path: str, scheme: str, header: str, cookie: str, protocol: str
) -> None:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: {scheme}{header}",
        f"Cookie: __Host-shoal={cookie}",
        f"Sec-WebSocket-Protocol: shoal.token.{protocol}",
        "Connection: close",
    ]

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = await reader.read()
        writer.close()
        return answer

    begun = time.monotonic()
    answer = node.run(ask())
    assert answer[9:12] in (b"401", b"400", b"426"), answer[:200]
    assert time.monotonic() - begun < 30  # It did not hang.


@FUZZ
@given(
    octets=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda rest: b"GET /v1/session HTTP/1.1\r\n" + rest))
)
def test_no_bytes_before_a_token_break_the_node(node: Node, octets: bytes) -> None:
    async def ask() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(octets)
        writer.transport.abort()

    node.run(ask())
    with socket.create_connection(("127.0.0.1", node.port)):
        pass


async def opened(http: aiohttp.ClientSession, node: Node, token: Made) -> aiohttp.ClientWebSocketResponse:
    socket = await http.ws_connect(node.url + "/v1/session", headers=token.header)
    await socket.send_bytes(encode_hello(Hello(PROTOCOL, "fuzz")))
    await socket.receive_bytes()
    return socket


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**40), 2**60), st.text(max_size=8), st.binary(max_size=8), st.just("crew")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)
TAGS = st.sampled_from([str(kind.__struct_config__.tag) for kind in kinds()])


@pytest.mark.answers("requests-need-their-right", note="anything that may be sent")
@FUZZ
@given(frames=st.lists(st.one_of(st.binary(max_size=80), st.tuples(TAGS, st.lists(PLAIN, max_size=6))), max_size=6))
def test_no_frame_of_a_reader_writes_or_breaks_the_node(node: Node, frames: list[Any]) -> None:
    async def send() -> None:
        async with aiohttp.ClientSession() as http:
            socket = await opened(http, node, node.reader)
            for id, frame in enumerate(frames, 1):
                if isinstance(frame, bytes):
                    await socket.send_bytes(frame)
                    continue
                tag, fields = frame
                call = encode_call(id, msgspec.Raw(msgspec.msgpack.encode([tag, *fields])), key=None)  # type: ignore[arg-type]
                for message in messages([call], bytes_max=1 << 20):
                    await socket.send_bytes(message)
            await socket.close()

    node.run(send())


@pytest.mark.answers("requests-need-their-right", note="anything that may be sent")
@FUZZ
@given(kind=st.sampled_from(kinds()), space=st.one_of(st.sampled_from(["crew", "other", ".shoal", ""]), st.text(max_size=5)))
def test_a_request_of_a_reader_that_needs_more_is_never_carried_out(node: Node, kind: type[Request[Any]], space: str) -> None:
    request = made(kind, space)
    granted = all(need.space == "crew" and need.action == "read" for need in needs(request))

    async def ask() -> str:
        from shoal.errors import ShoalError
        from shoal.transport.link import Link

        link = await Link.dial(node.url, config=Config(), token=node.reader.text)
        try:
            if isinstance(request, requests.Watch | requests.Follow | requests.FollowPresence):
                async with link.subscribe(request):
                    return "ok"
            await link.call(request)
            return "ok"
        except ShoalError as error:
            return error.code
        finally:
            await link.close()

    code = node.run(ask())
    assert code != "error"
    assert (code == "forbidden") is not granted
