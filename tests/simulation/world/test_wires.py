"""Wires between peers: what arrives, in which order, and when a link is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

from shoal.cluster import messages
from shoal.cluster.messages import Busy
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.errors import BadOperation
from shoal.testing.machines import run
from simulation.plan import Weather
from simulation.world.host import SimulatedNode
from simulation.world.incarnation import Incarnation
from simulation.world.network import Network
from simulation.world.trace import Trace
from simulation.world.wires import Wire, Wiring

HEARTBEAT_S = 1.0


def numbered(number: int) -> bytes:
    return messages.encode(Busy(number, "", 0))


class Heard:
    """A `Peer` that keeps what it receives, and raises `error` if there is one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: list[int] = []
        self.taking = 0
        self.taking_max = 0
        self.error: Exception | None = None
        self.ready = asyncio.Event()
        self.ready.set()

    def identity(self) -> Identity:
        return Identity(self.name.encode().ljust(16), f"{self.name}:1", "test")

    async def received(self, peer: Identity, message: bytes, /) -> None:
        self.taking += 1
        self.taking_max = max(self.taking, self.taking_max)
        await self.ready.wait()
        self.taking -= 1
        if self.error is not None:
            raise self.error
        self.numbers.append(cast(Busy, messages.decode(message)).id)


class Machine:
    """As much of a `SimulatedNode` as a wire looks at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = f"{name}:1"
        self.config = Config(peer_heartbeat_s=HEARTBEAT_S, peer_send_bytes_max=1000)
        self.life = Incarnation(name, 1)
        self.peer = Heard(name)


class Scene:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.network = Network(self.loop.time)
        self.problems: list[str] = []
        self.trace = Trace(self.loop.time)
        self.wiring = Wiring(self.network, self.trace, random_for=Random, problems=self.problems)
        self.source, self.target = Machine("a"), Machine("b")

    def wire(self) -> Wire:
        source, target = cast(SimulatedNode, self.source), cast(SimulatedNode, self.target)
        return Wire(source, target, address=target.address, wiring=self.wiring, random=Random(1))

    @property
    def heard(self) -> list[int]:
        return self.target.peer.numbers


def on(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Scene())

    run(main())


def test_fine_weather_delivers_each_message_once_and_in_order() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        for number in range(20):
            assert wire.offer(numbered(number))
        await asyncio.sleep(1.0)
        assert scene.heard == list(range(20))
        assert wire.waiting_bytes == 0

    on(story)


def test_bad_weather_loses_repeats_and_reorders() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        with scene.network.weather(Weather(at=0, loss=0.3, duplicate=0.3, reorder=0.5)):
            for number in range(100):
                wire.offer(numbered(number))
            await asyncio.sleep(1.0)
        heard = scene.heard
        assert 0 < len(set(heard)) < 100
        assert len(heard) > len(set(heard))
        assert heard != sorted(heard)

    on(story)


def test_past_its_bound_a_message_is_not_taken_but_one_alone_is() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        assert wire.offer(messages.encode(Busy(1, "x" * 2000, 0)))
        assert not wire.offer(numbered(2))
        await asyncio.sleep(1.0)
        assert wire.offer(numbered(3))
        await asyncio.sleep(1.0)
        assert scene.heard == [1, 3]

    on(story)


def test_the_next_message_is_read_once_the_last_was_taken() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        scene.target.peer.ready.clear()
        wire.offer(numbered(1))
        wire.offer(numbered(2))
        await asyncio.sleep(1.0)
        wire.sever()  # What is being taken is taken, and what waits is lost.
        scene.target.peer.ready.set()
        await asyncio.sleep(1.0)
        assert scene.heard == [1]

    on(story)


def test_a_cut_loses_what_is_under_way_and_then_the_link() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        wire.offer(numbered(1))
        with scene.network.cut(["a"], ["b"], both=False):
            await wire.broken.wait()
            assert HEARTBEAT_S / 2 <= scene.loop.time() <= HEARTBEAT_S * 1.5
        assert wire.offer(numbered(2))  # As a socket whose end nobody has told yet.
        await asyncio.sleep(1.0)
        assert scene.heard == []

    on(story)


def test_a_cut_is_noticed_even_if_it_was_short() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        with scene.network.cut(["b"], ["a"], both=False):
            await asyncio.sleep(HEARTBEAT_S / 10)
        await wire.broken.wait()

    on(story)


def test_a_short_pause_holds_what_comes_and_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        with scene.network.paused("b"):
            wire.offer(numbered(1))
            await asyncio.sleep(HEARTBEAT_S / 4)
            assert scene.heard == []
        wire.offer(numbered(2))
        await asyncio.sleep(HEARTBEAT_S * 2)
        assert scene.heard == [1, 2]
        assert not wire.broken.is_set()

    on(story)


def test_a_long_pause_costs_the_link() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        with scene.network.paused("b"):
            await wire.broken.wait()

    on(story)


def test_packets_of_a_dead_sender_arrive() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        wire.offer(numbered(1))
        scene.source.life.end()
        wire.drain()
        await asyncio.sleep(1.0)
        assert scene.heard == [1]
        assert wire.broken.is_set()

    on(story)


def test_a_dead_receiver_hears_nothing_and_its_sender_hears_of_it() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        wire.offer(numbered(1))
        scene.target.life.end()
        wire.lose_soon()
        await wire.broken.wait()
        await asyncio.sleep(1.0)
        assert scene.heard == []

    on(story)


def test_a_newer_wire_is_heard_after_the_older_ones_last_message() -> None:
    async def story(scene: Scene) -> None:
        older = scene.wire()
        scene.target.peer.ready.clear()
        older.offer(numbered(1))
        await asyncio.sleep(1.0)
        newer = scene.wire()
        newer.offer(numbered(2))
        await asyncio.sleep(1.0)
        assert older.broken.is_set()
        scene.target.peer.ready.set()
        await asyncio.sleep(1.0)
        assert scene.heard == [1, 2]
        assert scene.target.peer.taking_max == 1

    on(story)


def test_a_wire_that_was_severed_twice_still_makes_way_for_a_newer_one() -> None:
    async def story(scene: Scene) -> None:
        older = scene.wire()
        older.sever()
        older.sever()
        scene.wire().offer(numbered(2))
        await asyncio.sleep(1.0)
        assert scene.heard == [2]

    on(story)


def test_a_refused_message_closes_the_link_with_its_reason() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        scene.target.peer.error = BadOperation("it claims what cannot be. Nothing was written.", reason="test")
        wire.offer(numbered(1))
        await wire.broken.wait()
        assert scene.wiring.refusals == [("a", "b", "bad-operation")]
        assert scene.problems == []

    on(story)


def test_any_other_error_of_the_receiver_is_a_problem() -> None:
    async def story(scene: Scene) -> None:
        wire = scene.wire()
        scene.target.peer.error = KeyError("a bug")
        wire.offer(numbered(1))
        await wire.broken.wait()
        assert len(scene.problems) == 1
        assert "a bug" in scene.problems[0]

    on(story)


def test_messages_are_noted_by_kind_size_and_content() -> None:
    async def story(scene: Scene) -> None:
        scene.wire().offer(numbered(7))
        await asyncio.sleep(1.0)
        assert "b        hears Busy of a: 5 bytes" in scene.trace.last(1)[0]

    on(story)
