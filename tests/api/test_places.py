"""No address takes all places of a node, however many connections it opens and however slow they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.api.http.accepting import FEW, TOLD_MAX, Places, address_of
from shoal.config import Config
from simulation.bounds import altered, parted
from tests.api.test_refusals import connected

Serve = Callable[..., Awaitable[Any]]


def full(**settings: int) -> Places:
    mine, bounds = parted(settings)
    with altered(**bounds):
        return Places(Config(**mine))


def test_one_address_has_a_share() -> None:
    places = full(connections_max=100, connections_address_max=50, connections_kept=0)
    assert [places.take("10.0.0.1") for _ in range(50)] == [""] * 50
    assert "10.0.0.1 has 50 connections" in places.take("10.0.0.1")
    assert places.take("10.0.0.2") == ""


def test_the_last_places_are_for_those_that_have_few() -> None:
    places = full(connections_max=800, connections_address_max=500, connections_kept=64)
    taken = [places.take(f"10.0.0.{nth % 2}") for nth in range(800)]
    assert taken.count("") == 736
    for _ in range(64):  # The refused ones end.
        places.leave("10.0.0.1")
    assert [places.take("10.0.9.9") for _ in range(FEW)] == [""] * FEW
    assert "keeps its last 64" in places.take("10.0.9.9")


def test_an_ended_connection_gives_its_place_back() -> None:
    places = full(connections_max=8, connections_address_max=1)
    for _ in range(5):
        assert places.take("a") == ""
        places.leave("a")
    assert places.lets_shake("a", shaking=0, of_address=0)


def test_handshakes_count_for_their_address() -> None:
    places = full(connections_max=100, connections_address_max=10)
    assert places.lets_shake("a", shaking=50, of_address=10 + TOLD_MAX - 1)
    assert not places.lets_shake("a", shaking=50, of_address=10 + TOLD_MAX)
    assert places.lets_shake("b", shaking=50, of_address=0)
    places.take("a")  # Beside those that it has.
    assert not places.lets_shake("a", shaking=50, of_address=10 + TOLD_MAX - 1)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        ("", ""),
        (None, ""),
    ],
)
def test_the_network_of_a_connection_counts(peer: object, address: str) -> None:
    assert address_of(peer) == address


async def test_a_head_that_trickles_ends_at_its_deadline(serve: Serve) -> None:
    served = await serve(head_s=0.3, idle_s=1000.0)
    async with connected(served) as (reader, writer), asyncio.timeout(30):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"X: a\r\n")
            await asyncio.wait([ended], timeout=0.01)
        with pytest.raises(ConnectionError):  # It is cut off: nothing is read from it any more.
            assert await ended == b""
            raise ConnectionResetError


async def test_a_connection_between_requests_has_longer(serve: Serve) -> None:
    served = await serve(head_s=0.05, idle_s=1000.0)
    async with connected(served) as (reader, writer), asyncio.timeout(30):
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"alive")
            await asyncio.sleep(0.2)


async def test_an_address_beyond_its_share_is_told_so(serve: Serve) -> None:
    served = await serve(connections_address_max=1)
    async with connected(served), connected(served) as (reader, _), asyncio.timeout(30):
        told = await reader.read()
    assert told.startswith(b"HTTP/1.1 429 ")
    assert b"127.0.0.1 has 1 connections" in told
