"""Sockets that behave as aiohttp's, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from aiohttp import ClientConnectionResetError, WSMessageTypeError, WSMsgType

from shoal.testing.machines import run
from simulation.plan import Weather
from simulation.world.incarnation import Fenced, Incarnation
from simulation.world.network import CLIENT, Network
from simulation.world.sockets import WINDOW_BYTES, SimulatedSocket, pair

HEARTBEAT_S = 2.0


class Scene:
    """A client's end and a node's end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.network = Network(self.loop.time)
        self.life = Incarnation("n1", 1)
        self.client = self._end(CLIENT, "n1", None)
        self.node = self._end("n1", CLIENT, self.life)
        pair(self.client, self.node)

    def _end(self, name: str, peer: str, life: Incarnation | None) -> SimulatedSocket:
        return SimulatedSocket(
            self.network, name=name, peer=peer, life=life, heartbeat_s=HEARTBEAT_S, close_s=1.0, random=Random(name)
        )


def on(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Scene())

    run(main())


def test_messages_keep_their_order_in_any_weather() -> None:
    async def story(scene: Scene) -> None:
        with scene.network.weather(Weather(at=0, delay_s=1.0, reorder=1.0, loss=1.0, duplicate=1.0)):
            for number in range(20):
                await scene.client.send_bytes(bytes([number]))
                await asyncio.sleep(0.01)
            assert [await scene.node.receive_bytes() for _ in range(20)] == [bytes([number]) for number in range(20)]
        assert scene.loop.time() > 0.5

    on(story)


def test_a_short_cut_holds_what_was_sent_and_loses_nothing() -> None:
    async def story(scene: Scene) -> None:
        with scene.network.cut([CLIENT], ["n1"], both=True):
            await scene.client.send_bytes(b"held")
            hearing = asyncio.create_task(scene.node.receive_bytes())
            await asyncio.sleep(HEARTBEAT_S / 4)
            assert not hearing.done()
        assert await hearing == b"held"
        await scene.node.send_bytes(b"back")
        assert await scene.client.receive_bytes() == b"back"

    on(story)


def test_an_end_gives_up_on_silence_after_about_a_heartbeat() -> None:
    async def story(scene: Scene) -> None:
        with scene.network.cut([CLIENT], ["n1"], both=False):
            message = await scene.client.receive()
            assert message.type is WSMsgType.ERROR
            assert HEARTBEAT_S / 2 <= scene.loop.time() <= HEARTBEAT_S * 1.5
            with pytest.raises(ClientConnectionResetError):
                await scene.client.send_bytes(b"late")

    on(story)


def test_frames_under_way_may_arrive_after_giving_up() -> None:
    async def story(scene: Scene) -> None:
        with scene.network.paused("n1"):
            await scene.client.send_bytes(b"an old request")
            assert (await scene.client.receive()).type is WSMsgType.ERROR
            await asyncio.sleep(HEARTBEAT_S * 3)  # The machine that stands still does not give up meanwhile.
        assert await scene.node.receive_bytes() == b"an old request"
        assert (await scene.node.receive()).type is WSMsgType.CLOSED

    on(story)


def test_a_silence_that_ended_in_time_is_forgotten() -> None:
    async def story(scene: Scene) -> None:
        for _ in range(10):
            with scene.network.cut([CLIENT], ["n1"], both=True):
                await asyncio.sleep(HEARTBEAT_S / 4)
            await asyncio.sleep(HEARTBEAT_S / 4)
        await scene.client.send_bytes(b"still there")
        assert await scene.node.receive_bytes() == b"still there"

    on(story)


def test_a_close_is_answered_and_says_why() -> None:
    async def story(scene: Scene) -> None:
        hearing = asyncio.create_task(scene.client.receive())
        assert await scene.node.close(code=1001, message=b"the node is stopping")
        message = await hearing
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1001, "the node is stopping")
        assert scene.client.closed
        assert scene.client.close_code == 1001
        assert not await scene.node.close()

    on(story)


def test_a_close_that_nobody_answers_ends_in_time() -> None:
    async def story(scene: Scene) -> None:
        await scene.client.send_bytes(b"not a good-bye")
        await scene.client.close()
        assert scene.loop.time() == pytest.approx(1.0)

    on(story)


def test_a_reader_is_woken_by_its_own_close() -> None:
    async def story(scene: Scene) -> None:
        hearing = asyncio.create_task(scene.client.receive())
        await asyncio.sleep(0)
        closing = asyncio.create_task(scene.client.close())
        assert (await hearing).type is WSMsgType.CLOSING
        await closing

    on(story)


def test_an_aborted_connection_ends_after_what_was_sent_before() -> None:
    async def story(scene: Scene) -> None:
        await scene.node.send_bytes(b"last words")
        scene.node.abort()
        assert await scene.client.receive_bytes() == b"last words"
        with pytest.raises(WSMessageTypeError):
            await scene.client.receive_bytes()
        with pytest.raises(ClientConnectionResetError):
            await scene.client.send_bytes(b"anybody?")

    on(story)


def test_a_dead_nodes_end_is_fenced() -> None:
    async def story(scene: Scene) -> None:
        hearing = scene.life.begin(scene.node.receive())
        await asyncio.sleep(0)
        scene.life.over = True
        await scene.client.send_bytes(b"too late")
        with pytest.raises(Fenced):
            await hearing
        with pytest.raises(Fenced):
            await scene.node.send_bytes(b"from the grave")
        with pytest.raises(Fenced):
            await scene.node.close()

    on(story)


def test_a_sender_waits_for_an_end_that_takes_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.node.send_bytes(bytes(WINDOW_BYTES + 1))
        sending = asyncio.create_task(scene.node.send_bytes(b"more"))
        await asyncio.sleep(1.0)
        assert not sending.done()
        await scene.client.receive_bytes()
        await sending
        assert await scene.client.receive_bytes() == b"more"
        assert scene.node.get_write_buffer_size() == 0

    on(story)
