"""Asks the nodes to which the seeds lead who they are, until the members of the cluster are known.

Laws:
- Names are resolved anew for each round; rounds are spread, with pauses that double up to `reconnect_delay_s_max`.
- A name may lead to several addresses, to none, or to this node itself: what leads nowhere is reported once.
- An answer is believed once it is proven, as in every handshake. If `tls_peer_names` is "own", whoever gives it shows a
  certificate that names it: not the address at which it was found, which no certificate does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from shoal.cluster.handshake import NONCE_BYTES
from shoal.cluster.membership.notices import FOUND_MAX
from shoal.cluster.peering import Identity
from shoal.errors import Disconnected, PeerRefused, ShoalError, Unavailable
from shoal.logs import events
from shoal.transport.peer_dialler import dial
from shoal.transport.peer_link import LinkContext, side_of

PAUSE_S_FIRST = 0.05
ASKED = "asked"
"""The reason with which a node ends a handshake in which it only asked."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Finds the addresses, "ip:port", of a host and a port. Raises OSError."""


class Seeding(Protocol):
    """The node, as it wants to know its members."""

    @property
    def is_over(self) -> bool:
        """Whether nobody need be asked any more."""
        ...

    @property
    def told(self) -> str:
        """For people: what is missing."""
        ...

    async def heard(self, peers: list[Identity], /) -> None:
        """Take what one round has found."""
        ...


async def resolved(host: str, port: int) -> list[str]:
    """Ask the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = [str(address[0]) for *_, address in found]
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in dict.fromkeys(hosts)]


class Seeds:
    """`addresses` are the configured ones. `seeding` gets what is found."""

    def __init__(
        self, context: LinkContext, seeding: Seeding, *, addresses: Sequence[str], resolve: Resolve = resolved
    ) -> None:
        self._peer = context.peer
        self._seeding = seeding
        self._addresses = addresses
        self._config = context.config
        self._entropy = context.entropy
        self._report = context.report
        self._resolve = resolve
        self._tls = context.asking
        self._keys = context.keys
        self._reported: dict[str, str] = {}  # By seed or address: why it led nowhere.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s, told = PAUSE_S_FIRST, ""
        while not self._seeding.is_over:
            found = [peer for peer in await asyncio.gather(*map(self._ask, await self._found())) if peer is not None]
            try:
                await self._seeding.heard(found)
            except ShoalError as error:  # Storage failed; the node says so.
                self._note("storage", error.message)
            if self._seeding.told not in ("", told):
                told = self._seeding.told
                self._report(events.MEMBERS_UNKNOWN, reason=told)
            await asyncio.sleep(pause_s * (0.5 + self._entropy(1)[0] / 512))
            pause_s = min(2 * pause_s, self._config.reconnect_delay_s_max)

    async def _found(self) -> list[str]:
        """The addresses to which the seeds lead now."""
        found: dict[str, None] = {}
        for seed in self._addresses:
            host, _, port = seed.rpartition(":")
            try:
                async with asyncio.timeout(self._config.peer_connect_timeout_s):
                    addresses = await self._resolve(host, int(port))
            except (OSError, TimeoutError) as reason:
                self._note(seed, f"the name cannot be resolved: {reason or 'no answer in time'}")
                continue
            if not addresses:
                self._note(seed, "the name leads to no address")
            found.update(dict.fromkeys(addresses))
        return list(found)[:FOUND_MAX]

    async def _ask(self, address: str) -> Identity | None:
        """The identity of the node at this address; None if there is none, or it is this one."""
        told: list[Identity] = []

        def admit(peer: Identity) -> None:
            told.append(peer)
            raise PeerRefused("the node only asked who is there. Nothing was written.", reason=ASKED)

        side = side_of(self._peer, config=self._config, ring=self._keys())
        try:
            await dial(address, side=side, nonce=self._entropy(NONCE_BYTES), config=self._config, admit=admit, tls=self._tls())
        except PeerRefused as refusal:
            if refusal.detail.get("reason") not in (ASKED, "self"):
                self._note(address, refusal.message)
        except (Disconnected, Unavailable) as failure:
            self._note(address, failure.message)
        except ShoalError as error:
            self._note(address, error.message)
        return told[0] if told else None

    def _note(self, about: str, reason: str) -> None:
        """Report why something led nowhere, unless that was reported last."""
        if self._reported.get(about) != reason:
            self._reported[about] = reason
            self._report(events.SEED_LEADS_NOWHERE, seed=about, reason=reason)
