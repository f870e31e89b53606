"""Warnings about peers: each reason once in an interval, and never so many that they fill a log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shoal.errors import Disconnected, PeerRefused
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
        self.told: list[tuple[str, dict[str, object]]] = []
        self.warn = Warnings(self._note)

    def _note(self, event: str, /, **detail: object) -> None:
        self.told.append((event, detail))


def test_a_peer_and_a_reason_are_told_once_in_an_interval() -> None:
    async def main() -> None:
        log = Log()
        for _ in range(100):
            log.warn("peer refused", "n2", refused("key"), peer="n2")
            await asyncio.sleep(1.0)
        assert len(log.told) == 2
        event, detail = log.told[1]
        assert (event, detail["peer"], detail["left_out"]) == ("peer refused", "n2", 59)
        assert "it is refused: key" in str(detail["reason"])

    run(main())


def test_another_peer_or_another_reason_is_told_at_once() -> None:
    async def main() -> None:
        log = Log()
        log.warn("peer refused", "n2", refused("key"))
        log.warn("peer refused", "n2", refused("cluster"))
        log.warn("peer refused", "n3", Disconnected("it broke"))
        assert len(log.told) == 3

    run(main())


def test_that_a_peer_is_refused_and_that_it_refuses_are_two_things() -> None:
    async def main() -> None:
        log = Log()
        log.warn("peer refused", "n2", refused("key"))
        log.warn("peer not linked", "n2", refused("key"))
        assert [event for event, _ in log.told] == ["peer refused", "peer not linked"]

    run(main())


def test_strangers_with_ever_new_names_do_not_fill_the_log() -> None:
    async def main() -> None:
        log = Log()
        for number in range(1000):
            log.warn("peer refused", f"stranger-{number}", refused("key"))
        assert len(log.told) == 3
        await asyncio.sleep(61.0)
        log.warn("peer refused", "n2", ValueError("a bug"))
        assert log.told[-1][1] == {"reason": "ValueError: a bug", "left_out": 997}

    run(main())
