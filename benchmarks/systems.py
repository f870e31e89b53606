"""Other systems on three nodes of this machine, as a user would set them up for state that must not be lost.

Law: a write is acknowledged once it is on the disks of two of three nodes, in each of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import NamedTuple

import aiohttp

from benchmarks.cluster import free_ports
from benchmarks.states import state

NODES = 3

_PATIENCE_S = 30.0
_POLL_S = 0.05
_ETCD = "etcd"
_REDIS = "redis-server"
_POSTGRES = "/usr/lib/postgresql"  # Debian's place; its programs refuse to run as root.

Write = Callable[[int, int], Awaitable[None]]
"""Writes the state of a task's step, and returns once the system has acknowledged it."""


class System(NamedTuple):
    """A system that was started: how a client with so many tasks writes to it, and the processes of its nodes."""

    clients: Callable[[int], AsyncIterator[Write]]
    pids: Callable[[], Sequence[int]]


@contextmanager
def etcd(directory: Path) -> Iterator[System | None]:
    """Through its JSON gateway, a third of the tasks at each node."""
    if shutil.which(_ETCD) is None:
        yield None
        return
    ports = free_ports(2 * NODES)
    clients_at, peers_at = ([f"http://127.0.0.1:{port}" for port in some] for some in (ports[:NODES], ports[NODES:]))
    cluster = ",".join(f"n{number}={url}" for number, url in enumerate(peers_at))
    commands = []
    for number, (client, peer) in enumerate(zip(clients_at, peers_at, strict=True)):
        command = [_ETCD, "--name", f"n{number}", "--data-dir", str(directory / f"n{number}"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster]
        commands.append(command)
    with _processes(commands) as pids:

        async def clients(tasks: int) -> AsyncIterator[Write]:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=tasks)) as http:

                async def write(task: int, step: int) -> None:
                    body = {"key": _base64(f"t{task}"), "value": _base64(json.dumps(state(task, step)))}
                    async with http.post(f"{clients_at[task % NODES]}/v3/kv/put", json=body) as answer:
                        assert answer.status == 200, await answer.text()

                await patiently(write)
                yield write

        yield System(clients, lambda: pids)


@contextmanager
def redis(directory: Path) -> Iterator[System | None]:
    """`appendfsync always`, and `SET` with `WAIT 1` in one pipeline; all tasks at the primary."""
    if shutil.which(_REDIS) is None or find_spec("redis") is None:  # The server, or its client in Python.
        yield None
        return
    from redis.asyncio import Redis

    ports = free_ports(NODES)
    commands = []
    for port in ports:
        (directory / str(port)).mkdir()
        command = [_REDIS, "--port", str(port), "--dir", str(directory / str(port)), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        commands.append(command + ([] if port == ports[0] else ["--replicaof", "127.0.0.1", str(ports[0])]))
    with _processes(commands) as pids:

        async def clients(tasks: int) -> AsyncIterator[Write]:
            connections = [Redis(port=ports[0]) for _ in range(tasks)]

            async def write(task: int, step: int) -> None:
                pipeline = connections[task].pipeline(transaction=False)
                pipeline.set(f"t{task}", json.dumps(state(task, step)))
                pipeline.execute_command("WAIT", 1, 1000)
                _, copies = await pipeline.execute()
                assert copies >= 1

            await patiently(write)
            yield write
            await asyncio.gather(*(connection.aclose() for connection in connections))

        yield System(clients, lambda: pids)


@contextmanager
def postgres(directory: Path) -> Iterator[System | None]:
    """A row inserted for each write, on a connection for each task, all at the primary."""
    with postgres_cluster(directory) as cluster:
        if cluster is None:
            yield None
            return
        from psycopg import AsyncConnection

        async def clients(tasks: int) -> AsyncIterator[Write]:
            async with AsyncExitStack() as stack:
                connections = [await AsyncConnection.connect(cluster.url, autocommit=True) for _ in range(tasks)]
                for connection in connections:
                    stack.push_async_callback(connection.close)
                await connections[0].execute("CREATE TABLE IF NOT EXISTS saves (task int, step int, state jsonb)")

                async def write(task: int, step: int) -> None:
                    values = (task, step, json.dumps(state(task, step)))
                    await connections[task].execute("INSERT INTO saves VALUES (%s, %s, %s)", values)

                await patiently(write)
                yield write

        yield System(clients, cluster.pids)


# ── PostgreSQL ────────────────────────────────────────────────────────────────


class Cluster(NamedTuple):
    """A primary and two standbys; `url` is the primary's."""

    url: str
    pids: Callable[[], Sequence[int]]


@contextmanager
def postgres_cluster(directory: Path) -> Iterator[Cluster | None]:
    """`synchronous_commit = on`, `ANY 1` of two streaming standbys; none where PostgreSQL is not installed."""
    found = sorted(Path(_POSTGRES).glob("*/bin"))
    if not found:
        yield None
        return
    programs, port = found[-1], free_ports(1)[0]
    user = "postgres" if os.geteuid() == 0 else None
    place = directory / "postgres"
    place.mkdir()
    if user is not None:
        for each in (directory, place):
            shutil.chown(each, user)

    def run(program: str, *arguments: object) -> None:
        subprocess.run(
            [str(programs / program), *map(str, arguments)], user=user, cwd=place, check=True, stdout=subprocess.DEVNULL
        )

    def start(node: Path) -> None:
        run("pg_ctl", "-D", node, "-l", f"{node}.log", "-w", "start")

    nodes = [place / name for name in ("primary", "s1", "s2")]
    with ExitStack() as stack:
        for number, node in enumerate(nodes):
            if number == 0:
                run("initdb", "-D", node, "-A", "trust", "-E", "UTF8", "-U", "postgres")
                settings = _PRIMARY + f"unix_socket_directories = '{place}'\nport = {port}\n"
            else:
                standby = free_ports(1)[0]
                run("pg_basebackup", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-D", node, "-R", "-C", "-S", node.name)
                settings = f"port = {standby}\ncluster_name = '{node.name}'\n"
            with (node / "postgresql.conf").open("a") as file:
                file.write(settings)
            start(node)
            stack.callback(run, "pg_ctl", "-D", node, "-m", "immediate", "stop")
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _sql(run, port, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s1, s2)'")
        _sql(run, port, "SELECT pg_reload_conf()")
        while "quorum" not in _told(programs, port):
            sleep(_POLL_S)
        yield Cluster(url, lambda: _family([int((node / "postmaster.pid").read_text().split()[0]) for node in nodes]))


_PRIMARY = """
listen_addresses = '127.0.0.1'
shared_buffers = 256MB
max_wal_size = 4GB
max_connections = 200
wal_level = replica
max_wal_senders = 8
synchronous_commit = on
"""


def _sql(run: Callable[..., None], port: int, statement: str) -> None:
    run("psql", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "-qc", statement)


def _told(programs: Path, port: int) -> str:
    """How the primary counts its standbys."""
    command = [str(programs / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-Atc"]
    return subprocess.run([*command, "SELECT sync_state FROM pg_stat_replication"], capture_output=True, text=True).stdout


def _family(roots: Sequence[int]) -> list[int]:
    """The processes and their children: each connection of PostgreSQL has one."""
    found = list(roots)
    for pid in roots:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


# ── processes ─────────────────────────────────────────────────────────────────


@contextmanager
def _processes(commands: list[list[str]]) -> Iterator[list[int]]:
    with ExitStack() as stack:
        running = []
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            running.append(process.pid)
        yield running


async def patiently(write: Write) -> None:
    """Write once through each node, as soon as they take it."""
    async with asyncio.timeout(_PATIENCE_S):
        for task in range(NODES):
            while True:
                try:
                    await write(task, 0)
                    break
                except Exception:
                    await asyncio.sleep(_POLL_S)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
