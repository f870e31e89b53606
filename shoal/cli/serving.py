"""One node and its listener, from start to stop.

SIGTERM and SIGINT stop it cleanly: it accepts no new requests, those under way finish and
are durable, and the store is closed. A second signal ends it at once, without loss of
acknowledged writes. SIGHUP loads the certificates, the cluster's key, and the master
key of an encrypted directory, again; a node that has none of them stops. The only line on standard output is the URL, once
the node answers there; everything else is logged. A service manager (systemd) is told that it is ready, still turns, and stops,
by the protocol of `sd_notify`.

Laws:
- Without `NOTIFY_SOCKET` in the environment nothing is opened and nothing is sent.
- A beat of the watchdog comes from the event loop, so a loop that is stuck sends none, and the manager ends the process.
- A manager that cannot be reached stops nothing: the node serves.
- The variables are not handed on to programs that the node starts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import shoal
from shoal.api.health import Backlog
from shoal.api.http.accepting import check_free
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from shoal.errors import InvalidConfig, ShoalError
from shoal.logs import events
from shoal.logs.lines import log, tell_left_out
from shoal.node.collection.sealing import KeyKeeper
from shoal.node.environment import Environment, system_environment
from shoal.node.node import Node, open_node
from shoal.node.peers.members import seeds_of
from shoal.node.peers.replicator import Replicator
from shoal.node.service import Credentials
from shoal.protocol.requests import Status
from shoal.transport.keyring import ClusterKey
from shoal.transport.peer_link import PEER_PATH, LinkContext, Warnings
from shoal.transport.peers import Peers, Resolve, resolved

if TYPE_CHECKING:
    from shoal.access.access import Access
    from shoal.tls.current import CurrentTls
import socket
from collections.abc import MutableMapping

_REQUEST_ID_BYTES = 8
_TOLD_MAX = 1000  # Authors in a status.
# The thread that syncs waits for the interpreter's lock before and after each fsync, while a busy loop keeps it: by default for
# up to 5 ms each. All writes of all spaces wait for that thread. It asks some hundred times a second, so changes cost little.
_SWITCH_INTERVAL_S = 0.0005
# Objects that may be in cycles, made until the next look for cycles. Python's 700 are made by a dozen saves, and a look takes
# up to 10 ms. Few objects of a node are ever in a cycle, so more of them cost little memory.
_COLLECTED_AFTER = 7000


async def serving(data: Path, config: Config, *, ready: Callable[[str], None] = lambda _: None) -> signal.Signals:
    """Serve until a signal comes, and return it. `ready` is called with the URL once the node answers there.

    Raises:
        InvalidConfig: it cannot listen on the configured address, or its TLS files, the keys of tokens or the cluster's key
            are wrong.
        ShoalError: the store cannot be opened.
    """
    tls = tls_of(config)
    access = access_of(config)
    key = ClusterKey(config)
    # Before the directory is made: a node that cannot listen leaves none behind.
    try:
        await check_free(config.listen_host, config.listen_port)
    except OSError as error:
        raise _cannot_listen(config, error, "Nothing was written.") from error
    stopping = _signalled()
    manager = Manager(os.environ)
    refreshing: asyncio.Task[None] | None = None
    environment = system_environment()
    node = await open_node(data, config=config, environment=environment)
    try:
        node.service.present(lambda: credentials_of(tls, access, key))
        if node.resumed_after_crash:
            log(events.RESUMED, data=str(data))
        peers = peers_of(node.replicator, config, environment, tls=tls, key=key)
        refreshing = asyncio.create_task(_refreshed(tls, node.keys, key, peers, config))
        if access is not None:
            await access.start(node.session())
        listener = await listening(node, config, peers, tls, access)
        try:
            if peers is not None:
                peers.start()
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
            gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
            # Objects that exist now stay, so exclude them from full collections, during which requests wait.
            gc.collect()
            gc.freeze()
            log(events.READY, url=listener.url, data=str(data), version=shoal.__version__)
            sys.stdout.write(f"{listener.url}\n")
            sys.stdout.flush()
            manager.ready(listener.url)
            ready(listener.url)
            caught = await stopping
            manager.stopping()
            log(events.STOPPING, signal=caught.name)
        finally:
            await listener.stop()
    finally:
        if access is not None:
            await access.stop()
        if refreshing is not None:
            refreshing.cancel()
        await node.stop()
        manager.stopped()
    log(events.STOPPED)
    tell_left_out(is_over=True)
    return caught


def tls_of(config: Config) -> CurrentTls | None:
    """The TLS of a node; None if it has none.

    Raises:
        InvalidConfig: the files cannot be used.
    """
    if not config.tls_cert:
        return None
    # Imported here, because a node without TLS needs none of the libraries for it.
    from shoal.tls.current import CurrentTls

    return CurrentTls(config, now_s=time.time)


def access_of(config: Config) -> Access | None:
    """The access to a node that asks for tokens, not started yet; None if it asks for none.

    Raises:
        InvalidConfig: the keys cannot be used.
    """
    if not config.token_keys and not config.oidc_issuers:
        return None
    # Imported here, because a node without tokens needs none of the libraries for them.
    from shoal.access.access import Access

    return Access(config, now_s=time.time, entropy=os.urandom)


def credentials_of(tls: CurrentTls | None, access: Access | None, key: ClusterKey) -> Credentials:
    """The credentials that a node shows and asks for now, for its status."""
    ends, ending = ([], []) if access is None else (access.gate.ends(), access.gate.ending())
    return Credentials(
        tls_ends_ms=0 if tls is None else round(tls.ends_s * 1000),
        tls_trouble="" if tls is None else tls.trouble,
        tokens_end_ms=round(ends[0].ends_s * 1000) if ends else 0,
        tokens_ending=[f"{token.author} until {_moment(token.ends_s)}" for token in ending[:_TOLD_MAX]],
        tokens_refused={} if access is None else access.gate.refusals,
        cluster_keys=key.ring.names,
        cluster_key_file=key.is_file,
        cluster_key_trouble=key.trouble,
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes")


async def _refreshed(
    tls: CurrentTls | None, keys: KeyKeeper | None, key: ClusterKey, peers: Peers | None, config: Config
) -> None:
    """Load the TLS files and the cluster's key when they change, and these and the master key on SIGHUP.

    What is wrong with them is reported once.
    """
    if tls is None and keys is None and not key.is_file:
        return
    asked, told = asyncio.Event(), ""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    while True:
        is_asked = asked.is_set()
        asked.clear()
        if tls is not None and (is_asked or tls.has_changed()):
            with suppress(InvalidConfig):  # `trouble` has it.
                tls.reload()
                log(events.TLS_LOADED, until=tls.until)
        if key.is_file and (is_asked or key.has_changed()):
            await _rekeyed(key, peers)
        if keys is not None and is_asked:
            await _rewrapped(keys)
        if tls is not None:
            if tls.trouble not in ("", told):
                log(events.TLS_TROUBLE, reason=tls.trouble)
            told = tls.trouble
        with suppress(TimeoutError):
            async with asyncio.timeout(config.tls_look_s):
                await asked.wait()


async def _rekeyed(key: ClusterKey, peers: Peers | None) -> None:
    try:
        key.reload()
    except InvalidConfig:  # Reported in its words for a node that runs.
        log(events.CLUSTER_KEY_TROUBLE, reason=key.trouble)
        return
    log(events.CLUSTER_KEY_LOADED, keys=key.ring.names)
    if peers is not None:
        await peers.rekeyed()


async def _rewrapped(keys: KeyKeeper) -> None:
    try:
        if await keys.reload():
            log(events.MASTER_KEY_REPLACED, keys=[keys.master])
    except ShoalError as error:
        log(events.MASTER_KEY_TROUBLE, reason=error.message)


def peers_of(
    replicator: Replicator | None,
    config: Config,
    environment: Environment,
    *,
    resolve: Resolve = resolved,
    tls: CurrentTls | None = None,
    key: ClusterKey | None = None,
) -> Peers | None:
    """The links of a node that has peers, not started yet."""
    if replicator is None:
        return None
    held = key or ClusterKey(config)
    context = LinkContext(
        replicator,
        config,
        environment.entropy,
        report=log,
        warn=Warnings(log),
        keys=lambda: held.ring,
        tls=lambda: None if tls is None else tls.dialling,
        asking=lambda: None if tls is None else tls.asking,
    )
    peers = Peers(
        context,
        addresses=replicator.memberships.addresses,
        seeding=replicator.memberships.seeding,
        seeds=seeds_of(config),
        resolve=resolve,
    )
    replicator.memberships.link_by(peers.dial, peers.reasons)
    return peers


async def listening(
    node: Node, config: Config, peers: Peers | None, tls: CurrentTls | None = None, access: Access | None = None
) -> Listener:
    """The node's listener, which listens.

    Raises:
        InvalidConfig: it cannot listen on the configured address.
    """
    status = await node.session().call(Status())
    app = create_app(
        node.session,
        config=config,
        node=status.node,
        version=status.version,
        now_s=time.time,
        backlog=lambda: Backlog(node.writes_pending, node.durable_lag_s),
        monotonic=time.monotonic,
        make_id=lambda: os.urandom(_REQUEST_ID_BYTES).hex(),
        doors={} if peers is None else {PEER_PATH: peers.serve},
        admit=node.service.readiness.admit,
        end_waits=node.leases.end_waits,
        gate=None if access is None else access.gate,
        others=lambda: [] if node.replicator is None else node.replicator.memberships.addresses,
    )
    if peers is not None:
        # Stop them after the requests are done, because some of those wait for peers.
        app.on_shutdown.append(lambda _: peers.stop())
    listener = Listener(app, config=config, tls=None if tls is None else tls.listening)
    try:
        await listener.start()
    except OSError as error:
        # Another program took it since it was found free.
        raise _cannot_listen(config, error, "The directory was opened, and is closed again.") from error
    return listener


def _cannot_listen(config: Config, error: OSError, written: str) -> InvalidConfig:
    where = f"{config.listen_host}:{config.listen_port}"
    return InvalidConfig(
        f"cannot listen on {where}: {error.strerror or error}. {written} Choose another --listen HOST:PORT.",
        field="listen_port",
    )


def _signalled() -> asyncio.Future[signal.Signals]:
    """A future that the first SIGTERM or SIGINT resolves; the second one ends the process.

    So does SIGHUP, which a terminal sends when it is closed, if there is nothing to load anew. `nohup` has it ignored.
    """
    loop = asyncio.get_running_loop()
    first: asyncio.Future[signal.Signals] = loop.create_future()

    def catch(number: signal.Signals) -> None:
        if first.done():
            os._exit(128 + number)
        first.set_result(number)

    ending = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    for number in ending:
        loop.add_signal_handler(number, catch, number)
    return first


_BEATS = 2  # In the time after which the manager would act.
_ABSTRACT = "@"


class Manager:
    """The service manager that started this process; one that wants to be told nothing is told nothing."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_ours = not pid or pid == str(os.getpid())
        self._beat_s = int(usec) / 1e6 / _BEATS if usec.isdecimal() and int(usec) > 0 and is_ours and self._address else 0.0
        self._beating: asyncio.Task[None] | None = None

    def ready(self, url: str) -> None:
        """The node answers at `url`; from now on the watchdog is beaten."""
        self._tell(f"READY=1\nSTATUS=serves {url}")
        if self._beat_s:
            self._beating = asyncio.create_task(self._beat())

    def stopping(self) -> None:
        """No new requests are taken; those under way end. That has a time of its own, so the watchdog is beaten on."""
        self._tell("STOPPING=1\nSTATUS=requests under way end, then the store is closed")

    def stopped(self) -> None:
        """End the beats."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._beat_s)

    def _tell(self, state: str) -> None:
        if not self._address.startswith(("/", _ABSTRACT)):
            return
        path = f"\0{self._address[1:]}" if self._address.startswith(_ABSTRACT) else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.setblocking(False)
            sending.sendto(state.encode(), path)
