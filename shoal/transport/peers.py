"""All links of a node to its peers: those that it dials and those that it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from shoal.transport.peer_dialler import PeerDialler
from shoal.transport.peer_door import PeerDoor
from shoal.transport.peer_link import LinkContext
from shoal.transport.seeds import Resolve, Seeding, Seeds, resolved


class Peers:
    """The links to all peers. `serve` handles `PEER_PATH`; call `start` once the listener listens, `stop` before it stops.

    `addresses` ("host:port") are dialled. `seeding` learns who is at the `seeds`, until it is over.
    """

    def __init__(
        self,
        context: LinkContext,
        *,
        addresses: Sequence[str],
        seeding: Seeding | None = None,
        seeds: Sequence[str] = (),
        resolve: Resolve = resolved,
    ) -> None:
        self._dialler = PeerDialler(context, addresses)
        self._seeds = None if seeding is None else Seeds(context, seeding, addresses=seeds, resolve=resolve)
        self._door = PeerDoor(context, accepted=self._dialler.hurry)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why there is no link to an address, for the addresses without one."""
        return self._dialler.reasons

    def start(self) -> None:
        """Begin to dial."""
        self._dialler.start()
        if self._seeds is not None:
            self._seeds.start()

    def dial(self, addresses: Sequence[str]) -> None:
        """Keep links to these addresses from now on."""
        self._dialler.dial(addresses)

    async def rekeyed(self) -> None:
        """The keys have changed: end the links whose other end proved one that is not accepted any more."""
        await self._dialler.rekeyed()
        await self._door.rekeyed()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one peer until it leaves.

        Raises:
            ShuttingDown, Overloaded: the node takes no more links.
        """
        return await self._door.serve(request)

    async def stop(self) -> None:
        """Close every link, and make no more; takes about a second or two at most."""
        if self._seeds is not None:
            await self._seeds.stop()
        await self._dialler.stop()
        await self._door.stop()
