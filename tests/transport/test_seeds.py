"""Nodes that know each other by a name that leads to all of them, as a service's name does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import pytest

from shoal.cli.serving import listening, peers_of
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.cluster.peering import Identity
from shoal.config import Config
from shoal.errors import CatchingUp
from shoal.node.environment import system_environment
from shoal.node.node import Node, open_node
from shoal.transport import peers
from shoal.transport.peer_link import LinkContext

WAIT_S = 30.0


class Service:
    """A name that leads to some hosts; each node listens on a loopback address of its own, all on one port."""

    def __init__(self, directory: Path) -> None:
        self.hosts: list[str] = []
        self._directory = directory
        self.asked = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked += 1
        if host != "shoal":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [f"{each}:{port}" for each in self.hosts]

    def node(self, number: int, **settings: object) -> Running:
        return Running(self, self._directory / f"n{number}", f"127.0.0.{number}", settings)


class Running:
    """A node with its listener and its links, as a context."""

    def __init__(self, service: Service, directory: Path, host: str, settings: dict[str, object]) -> None:
        self._service = service
        self._directory = directory
        base = {"join": f"shoal:{service.port}", "cluster_size": 3, "quorum_timeout_s": 0.3, "reconnect_delay_s_max": 0.2}
        address = {"listen_host": host, "listen_port": service.port, "advertise": f"{host}:{service.port}"}
        self.config = Config(**(base | address | settings))  # type: ignore[arg-type]
        self.node: Node

    async def __aenter__(self) -> Self:
        environment = system_environment()
        self.node = await open_node(self._directory, config=self.config, environment=environment)
        self.peers = peers_of(self.node.replicator, self.config, environment, resolve=self._service.resolve)
        assert self.peers is not None
        self._listener = await listening(self.node, self.config, self.peers)
        self.peers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop()
        await self.node.stop()

    @property
    def members(self) -> list[str]:
        assert self.node.replicator is not None
        return [member.name for member in self.node.replicator.quorum.view().members]

    @property
    def is_settled(self) -> bool:
        replicator = self.node.replicator
        assert replicator is not None
        view = replicator.quorum.view()
        return all(member.state != "unreachable" for member in view.members) and not view.learning

    def store(self) -> Store:
        session = self.node.session()
        return Store(StoreConnection(session, self.config, "local", system_environment().entropy), close=session.close)

    async def add(self, durability: str = "local") -> int:
        return await self.store().space("crew").counter("n").add(1, durability=durability)  # type: ignore[arg-type]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.answers("members-change-safely")
async def test_nodes_find_each_other_by_one_name_and_keep_their_own_names(service: Service) -> None:
    service.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    async with service.node(1) as one, service.node(2) as two, service.node(3) as three:
        nodes = (one, two, three)
        await until(lambda: all(each.is_settled for each in nodes))
        assert {tuple(sorted(each.members)) for each in nodes} == {tuple(f"{host}:{service.port}" for host in service.hosts)}
        assert await one.add("all") == 1


async def test_a_name_that_leads_nowhere_or_to_this_node_alone_leaves_it_waiting_and_asking(service: Service) -> None:
    """It cannot know whether its cluster exists, and majorities are counted over the configured number."""
    async with service.node(1) as one:
        await until(lambda: service.asked >= 3)
        service.hosts = ["127.0.0.1"]
        for durability in ("local", "quorum"):
            with pytest.raises(CatchingUp, match="the seeds have not led to all first members"):
                await one.add(durability)
        assert [name.startswith("not-found-yet") for name in one.members] == [False, True, True]
        service.hosts += ["127.0.0.2", "127.0.0.3"]
        async with service.node(2) as two, service.node(3) as three:
            await until(lambda: all(each.is_settled for each in (one, two, three)))
            assert await two.add("all") == 1


async def test_members_that_were_agreed_on_need_no_seeds_after_a_restart(service: Service) -> None:
    service.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    async with service.node(1) as one:
        async with service.node(2) as two, service.node(3) as three:
            await until(lambda: all(each.is_settled for each in (one, two, three)))
        service.hosts = []
        async with service.node(2, join="gone:1") as two:
            await until(lambda: sum(name.startswith("127") for name in two.members) == 3)
            assert await two.add("quorum") == 1


async def test_a_node_of_another_cluster_counts_for_nothing(service: Service) -> None:
    service.hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    async with service.node(1) as one, service.node(2), service.node(3, cluster="other"):
        asked = service.asked
        await until(lambda: service.asked >= asked + 6)
        assert sum(name.startswith("not-found-yet") for name in one.members) == 2


class Waiting:
    """A node that never knows its members, and has heard so many rounds."""

    told = ""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    @property
    def is_over(self) -> bool:
        return self.rounds == 0

    async def heard(self, _peers: list[Identity], /) -> None:
        self.rounds -= 1


async def seeded(rounds: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[str]]:
    """The pauses between rounds in which a seed led nowhere, and what was reported."""
    pauses: list[float] = []
    reported: list[str] = []

    async def slept(seconds: float) -> None:
        pauses.append(seconds)

    async def nowhere(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    monkeypatch.setattr(asyncio, "sleep", slept)
    context = LinkContext(
        cast(Any, None),
        Config(reconnect_delay_s_max=2.0),
        entropy=lambda count: b"\xff" * count,
        report=cast(Any, lambda event, **_: reported.append(event.name)),
        warn=cast(Any, None),
        keys=cast(Any, None),
    )
    made = peers.Seeds(context, Waiting(rounds), addresses=["gone:1"], resolve=nowhere)
    await made._run()
    return pauses, reported


async def test_rounds_are_spread_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, _ = await seeded(12, monkeypatch)
    assert pauses[1] == 2 * pauses[0]
    assert max(pauses) <= 2.0


async def test_broken_links_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await seeded(5, monkeypatch))[1] == ["seed-leads-nowhere"]
