"""A node's port with TLS, and the clients that reach it: each wrong end is told with its reason, before anything is sent."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shoal
from shoal.api.http import accepting
from shoal.api.http.accepting import TOLD_MAX, Places, TlsServer, listening
from shoal.config import Config
from shoal.errors import InvalidConfig, ShoalError, Unreachable, Unsupported
from shoal.integrations.langgraph import ShoalSaver, ShoalStore
from shoal.tls import authority
from tests.tls.conftest import Certificates, Serve, Served, until

PATIENT = Config(request_timeout_s=30.0, connect_timeout_s=30.0, reach_timeout_s=30.0)


async def told(url: str, ca: str | Path | None) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        async with shoal.connect(url, tls_ca=ca, config=PATIENT) as store:
            await store.status()
    assert caught.value.written == "no"
    assert "Nothing was sent" in caught.value.message
    return caught.value


async def test_a_session_and_http_are_served_over_tls(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    assert url.startswith("https://127.0.0.1:")
    async with shoal.connect(url, tls_ca=certificates.ca) as store:
        await store.space("s").counter("n").add(7)
    context = ssl.create_default_context(cafile=certificates.ca)
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/spaces/s/counters/n", ssl=context) as answer:
        assert (await answer.json())["value"] == 7


async def test_the_ca_may_be_a_setting(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    async with shoal.connect(url, config=Config(tls_ca=certificates.ca)) as store:
        assert (await store.status()).state == "ready"


async def test_messages_above_a_tls_record_arrive_whole(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    value = bytes(range(256)) * 40_000
    async with shoal.connect(url, tls_ca=certificates.ca) as store:
        await store.space("s").register("large").set(value)
        assert await store.space("s").register("large").get() == value


@pytest.mark.answers("tls-is-checked")
async def test_tls_1_2_is_refused(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    context = ssl.create_default_context(cafile=certificates.ca)
    host, _, port = url.removeprefix("https://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.transport.abort()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(host, int(port), ssl=context)


@pytest.mark.answers("tls-is-checked")
async def test_an_unknown_ca_is_told_with_the_way_to_name_it(certificates: Certificates, serve: Serve, tmp_path: Path) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    other = Certificates(tmp_path / "other")
    for ca in (None, other.ca):
        error = await told(url, ca)
        assert isinstance(error, Unsupported)
        assert "of a CA that is not trusted here" in error.message
        assert "SHOAL_TLS_CA" in error.message


@pytest.mark.answers("tls-is-checked")
async def test_a_wrong_name_is_told(certificates: Certificates, serve: Serve, tmp_path: Path) -> None:
    settings = certificates.settings("n1")
    Path(settings["tls_cert"]).write_bytes(_for_other_names(certificates, Path(settings["tls_key"])))
    error = await told((await serve(**settings)).url, certificates.ca)
    assert isinstance(error, Unsupported)
    assert "its certificate is for other names" in error.message
    assert "127.0.0.1" in error.message


def _for_other_names(certificates: Certificates, key: Path) -> bytes:
    """A certificate of the CA that lacks the own machine's names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_LOCAL", ())
        certificates.issue("elsewhere")
    key.write_bytes((certificates.directory / "elsewhere" / "key.pem").read_bytes())
    return (certificates.directory / "elsewhere" / "cert.pem").read_bytes()


@pytest.mark.answers("tls-is-checked")
async def test_an_expired_certificate_is_told(certificates: Certificates, serve: Serve) -> None:
    certificates.issue("n1", days_ago=400)
    error = await told((await serve(**certificates.settings("n1"))).url, certificates.ca)
    assert isinstance(error, Unsupported)
    assert "its certificate has expired" in error.message


@pytest.mark.answers("tls-is-checked")
async def test_plain_http_to_a_port_with_tls_is_told(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    error = await told(url.replace("https:", "http:"), None)
    assert isinstance(error, Unreachable)
    assert "https://" in error.message


async def test_tls_to_a_plain_port_is_told(certificates: Certificates, serve: Serve) -> None:
    url = (await serve()).url
    error = await told(url.replace("http:", "https:"), certificates.ca)
    assert isinstance(error, Unreachable)
    assert "does not speak TLS" in error.message


async def test_a_ca_that_is_missing_is_told_before_anything_is_sent(certificates: Certificates, serve: Serve) -> None:
    url = (await serve(**certificates.settings("n1"))).url
    error = await told(url, "/nowhere.pem")
    assert isinstance(error, InvalidConfig)
    assert "/nowhere.pem cannot be read" in error.message


async def large_answer(node: Served, ca: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection of a client that has asked for more than all buffers hold, and reads nothing yet."""
    async with shoal.connect(node.url, tls_ca=ca) as store:
        await store.space("s").register("large").set(bytes(10_000_000))
    host, _, port = node.address.partition(":")
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, (host, int(port)))
    context = ssl.create_default_context(cafile=ca)
    reader, writer = await asyncio.open_connection(sock=small, ssl=context, server_hostname=host, limit=1 << 14)
    writer.write(f"GET /v1/spaces/s/registers/large HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return reader, writer


async def test_a_client_that_reads_nothing_of_an_answer_is_cut_off(certificates: Certificates, serve: Serve) -> None:
    node = await serve(heartbeat_s=0.1, idle_s=1000.0, **certificates.settings("n1"))
    _, writer = await large_answer(node, certificates.ca)
    server = node.listener._runner.server
    assert server is not None
    await until(lambda: server.connections)
    await until(lambda: not server.connections)
    writer.transport.abort()


async def test_a_large_answer_arrives_whole(certificates: Certificates, serve: Serve) -> None:
    node = await serve(**certificates.settings("n1"))
    reader, writer = await large_answer(node, certificates.ca)
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    body = await reader.readexactly(length)
    assert length > 10_000_000
    assert body.endswith(b"}")
    writer.transport.abort()


async def test_a_langgraph_saver_connects_over_tls(certificates: Certificates, serve: Serve) -> None:
    node = await serve(**certificates.settings("n1"))
    async with ShoalSaver.connect(node.url, tls_ca=certificates.ca) as saver:
        assert await saver.aget_tuple({"configurable": {"thread_id": "t"}}) is None
    async with ShoalStore.connect(node.url, tls_ca=certificates.ca) as store:
        assert await store.aget(("memories",), "k") is None


@pytest.mark.answers("peers-route-is-closed")
async def test_connections_that_shake_hands_are_bounded(certificates: Certificates, serve: Serve) -> None:
    served = await serve(**certificates.settings("n1"), connections_max=4, tls_handshake_s=1000.0)
    host, port = served.address.split(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(4 + TOLD_MAX + 20)]
    async with asyncio.timeout(30):  # These are closed at once, long before a handshake's time is over.
        assert {await reader.read() for reader, _ in idle[4 + TOLD_MAX :]} == {b""}
    for _, writer in idle:
        writer.close()
    async with shoal.connect(served.url, tls_ca=certificates.ca, config=PATIENT, wait=30) as store:
        await store.space("s").counter("n").add(1)


async def test_a_connection_that_never_shakes_hands_is_closed(certificates: Certificates, serve: Serve) -> None:
    served = await serve(**certificates.settings("n1"), tls_handshake_s=0.05)
    host, port = served.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()


async def test_a_connection_that_is_accepted_in_the_turn_in_which_the_server_closes_is_closed(
    certificates: Certificates,
) -> None:
    settings = certificates.settings("n1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings["tls_cert"], settings["tls_key"])
    sockets = await listening("127.0.0.1", 0, backlog=8)
    server = TlsServer(sockets, asyncio.Protocol, context, places=Places(Config()), config=Config())
    with socket.create_connection(sockets[0].getsockname()) as client:
        server._accept(sockets[0])
        server.close()
        client.settimeout(10)
        assert await asyncio.to_thread(client.recv, 1) == b""


class Refusing(socket.socket):
    """Refuses to accept at first, as when the process is out of file descriptors."""

    refusals = 1

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


async def test_connections_are_accepted_again_after_the_system_refused(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "_AGAIN_S", 0.0)
    settings = certificates.settings("n1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings["tls_cert"], settings["tls_key"])
    listener = Refusing()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    server = TlsServer([listener], asyncio.Protocol, context, places=Places(Config()), config=Config())
    async with asyncio.timeout(30):
        _, writer = await asyncio.open_connection(
            *listener.getsockname(), ssl=ssl.create_default_context(cafile=certificates.ca), server_hostname="127.0.0.1"
        )
    assert not listener.refusals
    writer.transport.abort()
    server.close()


async def test_browsers_are_told_to_come_back_with_tls_if_others_reach_the_node(
    certificates: Certificates, serve: Serve
) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    for settings, told_ in (
        ({"listen_host": "0.0.0.0", "hsts_s": 60.0}, "max-age=60"),
        ({"listen_host": "0.0.0.0", "hsts_s": 0.0}, None),
        ({}, None),
    ):
        url = (await serve(**certificates.settings("n1"), **settings)).url
        async with aiohttp.ClientSession() as http:
            for path in ("/healthz", "/v1/spaces", "/nothing"):
                async with http.get(f"{url.replace('0.0.0.0', '127.0.0.1')}{path}", ssl=context) as answer:
                    assert answer.headers.get("Strict-Transport-Security") == told_
    url = (await serve(listen_host="0.0.0.0")).url.replace("0.0.0.0", "127.0.0.1")
    async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as answer:
        assert "Strict-Transport-Security" not in answer.headers
