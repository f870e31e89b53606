"""Nodes as the containers of docker-compose.yml as it ships, with TLS and tokens, on an engine of their own.

Laws:
- They are struck from outside, by the engine's means: containers are killed, paused, taken off their network and robbed of
  their volumes, packets are dropped in a container's own network, and a volume has no room left.
- The composition is the one that ships. So that a volume can be filled, it lies on a small disk of its own, which is mounted
  where the engine keeps the volume: nothing within a container can tell.
- The trial's clients are in the engine's network, and use the published ports with the CA and the token that the composition
  made for them.
- A container that ended by itself, which the engine would start again, is a failure.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from chaos import engine as engines
from chaos.cluster import Cluster, Node, NodeFailed, started
from chaos.engine import CommandFailed, Engine, entering
from chaos.network import Cut, Network, Route
from chaos.processes import DISK_BYTES

PROJECT = "chaos"
PORTS = {"n1": 7400, "n2": 7410, "n3": 7420}
"""As docker-compose.yml publishes them."""

_PORT = 7400  # Within each container.
_UP_S_MAX = 600
_LOOK_S = 2.0  # Between two looks whether a container still runs.
_LINES = "20"  # Of a log, for people.

_MOUNT = """
set -e
mkdir -p "$1" && mount -t tmpfs -o "size=$3" tmpfs "$1" && mkdir "$1/data"
chown --reference="$2" "$1/data" && chmod --reference="$2" "$1/data" && mount --bind "$1/data" "$2"
"""
"""Put a disk at $1 under the volume at $2."""


class Composition:
    """The composition on an engine: commands, and disks under its volumes."""

    def __init__(self, engine: Engine, laid: Path) -> None:
        self.engine = engine
        self.laid = laid
        self.token = laid / "client.token"
        self.ca = laid / "ca.pem"

    async def compose(self, *arguments: str) -> str:
        return await self.engine.run("docker", "compose", "--progress", "plain", *arguments, cwd=self.laid)

    async def docker(self, *arguments: str) -> str:
        return await self.engine.run("docker", *arguments)

    async def mount(self, name: str) -> None:
        """Put a disk under the volume of a node, which is empty."""
        await self.engine.run("sh", "-c", _MOUNT, "mount", _disk(name), await self.volume(name), str(DISK_BYTES))

    async def unmount(self, name: str) -> None:
        """Take the disk away, with all that is on it."""
        await self.engine.run("umount", await self.volume(name), _disk(name))

    async def volume(self, name: str) -> str:
        """Where the engine keeps the volume of a node."""
        return (await self.docker("volume", "inspect", "--format", "{{.Mountpoint}}", f"{PROJECT}_{name}")).strip()

    async def copied(self, name: str) -> Path:
        """A copy of what is in the volume of a node that is down, where this machine sees it."""
        copy = self.laid / f"{name}.disk"
        await self.engine.run("sh", "-c", 'rm -rf "$1" && cp -a "$0" "$1"', await self.volume(name), str(copy))
        return copy


def _disk(name: str) -> str:
    return f"/mnt/{name}"


def _container(name: str) -> str:
    return f"{PROJECT}-{name}-1"


class ContainerNode(Node):
    """One node, alive or not."""

    def __init__(self, name: str, composition: Composition) -> None:
        super().__init__(name, url=f"https://127.0.0.1:{PORTS[name]}", advertise=f"{name}:{_PORT}")
        self._composition = composition
        self._container = _container(name)
        self._is_up = False
        self._looked_at_s = 0.0

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def fell(self) -> bool:
        if not self._is_up or time.monotonic() - self._looked_at_s < _LOOK_S:
            return False
        self._looked_at_s = time.monotonic()
        state = "{{.State.Running}} {{.RestartCount}}"
        found = (await self._composition.docker("inspect", "--format", state, self._container)).split()
        return self._is_up and found != ["true", "0"]  # It may have been struck meanwhile.

    async def last_words(self) -> str:
        return await self._composition.docker("logs", "--tail", _LINES, self._container)

    async def launch(self) -> None:
        await self._composition.docker("start", self._container)
        self._is_up, self._looked_at_s = True, time.monotonic()

    async def kill(self) -> None:
        if self._is_up:
            self._is_up = False
            await self._composition.docker("kill", self._container)

    async def stop(self) -> None:
        self._is_up = False
        await self._composition.docker("stop", self._container)

    async def pause(self) -> None:
        await self._composition.docker("pause", self._container)

    async def resume(self) -> None:
        await self._composition.docker("unpause", self._container)

    async def wipe(self) -> None:
        await self._composition.docker("rm", self._container)
        await self._composition.unmount(self.name)
        await self._composition.docker("volume", "rm", f"{PROJECT}_{self.name}")
        await self._composition.compose("up", "--no-start", "--no-deps", self.name)
        await self._composition.mount(self.name)

    async def fill(self) -> None:
        """It ends once there is no room, with an error that is meant."""
        fill = f'head -c {DISK_BYTES} /dev/zero >>"$0/ballast" 2>/dev/null || true'
        await self._composition.engine.run("sh", "-c", fill, _disk(self.name))

    async def drain(self) -> None:
        await self._composition.engine.run("rm", "-f", f"{_disk(self.name)}/ballast")

    @asynccontextmanager
    async def disk(self) -> AsyncGenerator[Path]:
        yield await self._composition.copied(self.name)


class Bridge(Network):
    """The network of the composition. An isolated node is off it, for clients too; packets are dropped in the target's own."""

    def __init__(self, names: Iterable[str], composition: Composition) -> None:
        super().__init__(names)
        self._composition = composition
        self._off: list[str] = []
        self._dropping: dict[str, int] = {}  # Nodes that drop packets, each with its process.

    async def isolate(self, name: str, how: Cut) -> None:
        """Nothing gets through, and nobody is told: the engine knows no other way."""
        await self._composition.docker("network", "disconnect", f"{PROJECT}_default", _container(name))
        self._off.append(name)

    async def cut(self, routes: Iterable[Route], how: Cut) -> None:
        end = ["REJECT", "--reject-with", "tcp-reset"] if how == "refused" else ["DROP"]
        for route in routes:
            await self._filter(route, "--protocol", "tcp", "--dport", str(_PORT), "--jump", *end)

    async def deafen(self, route: Route) -> None:
        await self._filter(route, "--jump", "DROP")

    async def heal(self) -> None:
        while self._off:
            name = self._off.pop()
            # Its peers know it by its service's name, which the engine gives only to containers that compose connects.
            await self._composition.docker("network", "connect", "--alias", name, f"{PROJECT}_default", _container(name))
        while self._dropping:
            _, pid = self._dropping.popitem()
            await self._within(pid, "--flush", "INPUT")

    async def _filter(self, route: Route, *what: str) -> None:
        """Do that, in the target's network, to what comes from the source."""
        pid = self._dropping[route.target] = await self._composition.engine.pid(_container(route.target))
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        source = (await self._composition.docker("inspect", "--format", address, _container(route.source))).strip()
        await self._within(pid, "--append", "INPUT", "--source", source, *what)

    async def _within(self, pid: int, *rule: str) -> None:
        await self._composition.engine.run(*entering(pid, ["net"], ["iptables", "--wait", *rule]))


@asynccontextmanager
async def running(directory: Path, *, say: Callable[[str], None], now_s: Callable[[], float]) -> AsyncIterator[Cluster]:
    """The three nodes of the composition, ready, and members. Their logs are below `directory` afterwards.

    Raises:
        Skipped: there can be no engine here.
        NodeFailed: the image was not built, or a node did not start, or a command of the engine failed.
    """
    async with engines.running(say=say) as engine:
        composition = Composition(engine, engine.lay(Path(__file__).parents[1], PROJECT))
        try:
            await _up(composition, say)
            with engine.network():
                async with _cluster(composition, now_s) as cluster:
                    yield cluster
        except CommandFailed as failed:
            raise NodeFailed(str(failed)) from failed
        finally:
            for name in PORTS:
                with suppress(CommandFailed):
                    (directory / f"{name}.log").write_text(await composition.docker("logs", _container(name)))


async def _up(composition: Composition, say: Callable[[str], None]) -> None:
    """Start the composition anew, and fetch the token and the CA that it made, as its documentation says."""
    say("the image is built, and the composition is started")
    await composition.compose("down", "--volumes", "--timeout", "1")
    await composition.compose("up", "--build", "--no-start")
    for name in PORTS:
        await composition.mount(name)
    await composition.compose("up", "--detach", "--wait", "--wait-timeout", str(_UP_S_MAX))
    for file in (composition.token, composition.ca):
        await composition.compose("cp", f"n1:/tls/{file.name}", str(file))


@asynccontextmanager
async def _cluster(composition: Composition, now_s: Callable[[], float]) -> AsyncGenerator[Cluster]:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=composition.ca))
    headers = {"Authorization": f"Bearer {await asyncio.to_thread(composition.token.read_text)}".strip()}
    timeout = aiohttp.ClientTimeout(total=2.0)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        network = Bridge(PORTS, composition)
        nodes = [ContainerNode(name, composition) for name in PORTS]
        cluster = Cluster(nodes, network=network, http=http, now_s=now_s, token=composition.token, tls_ca=composition.ca)
        await started(cluster)
        yield cluster
