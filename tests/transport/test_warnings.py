"""Warnings about peers: each reason once in an interval, and never so many that they fill a log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shoal.errors import Disconnected, PeerRefused
from shoal.logs import events
from shoal.logs.event import Event
from shoal.testing.machines import run
from shoal.transport.peer_link import Warnings
from simulation.bounds import altered


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(peer_warning_interval_s=60.0, peer_warnings_max=3):
        yield


def refused(reason: str) -> PeerRefused:
    return PeerRefused(f"it is refused: {reason}. Nothing was written.", reason=reason)


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[Event, dict[str, object]]] = []
        self.warn = Warnings(self._note)

    def _note(self, event: Event, /, **detail: object) -> None:
        self.told.append((event, detail))


def test_a_peer_and_a_reason_are_told_once_in_an_interval() -> None:
    async def main() -> None:
        log = Log()
        for _ in range(100):
            log.warn(events.PEER_REFUSED, "n2", refused("key"), peer="n2")
            await asyncio.sleep(1.0)
        assert [event for event, _ in log.told] == [events.PEER_REFUSED, events.LINES_LEFT_OUT, events.PEER_REFUSED]
        assert log.told[1][1]["count"] == 59
        detail = log.told[2][1]
        assert detail["peer"] == "n2"
        assert "it is refused: key" in str(detail["reason"])

    run(main())


def test_another_peer_or_another_reason_is_told_at_once() -> None:
    async def main() -> None:
        log = Log()
        log.warn(events.PEER_REFUSED, "n2", refused("key"))
        log.warn(events.PEER_REFUSED, "n2", refused("cluster"))
        log.warn(events.PEER_REFUSED, "n3", Disconnected("it broke"))
        assert len(log.told) == 3

    run(main())


def test_that_a_peer_is_refused_and_that_it_refuses_are_two_things() -> None:
    async def main() -> None:
        log = Log()
        log.warn(events.PEER_REFUSED, "n2", refused("key"))
        log.warn(events.PEER_REFUSES, "n2", refused("key"))
        assert [event for event, _ in log.told] == [events.PEER_REFUSED, events.PEER_REFUSES]

    run(main())


def test_strangers_with_ever_new_names_do_not_fill_the_log() -> None:
    async def main() -> None:
        log = Log()
        for number in range(1000):
            log.warn(events.PEER_REFUSED, f"stranger-{number}", refused("key"))
        assert len(log.told) == 3
        await asyncio.sleep(61.0)
        log.warn(events.PEER_REFUSED, "n2", ValueError("a bug"))
        assert log.told[-2][1]["count"] == 997
        assert log.told[-1][1]["reason"] == "ValueError", "its text may hold what a peer sent"

    run(main())
