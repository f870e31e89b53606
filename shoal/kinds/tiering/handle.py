"""Tiering of a space: `space.tiering`."""

from __future__ import annotations

from datetime import timedelta

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.kinds.tiering import flows
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.connection import as_duration_ms


@named
class SpaceTiering:
    """Where the bytes of a space's idle threads go. Each node moves its own copy; they come back when they are read.

    Setting and unsetting take the right `admin` in the space of the nodes, `.shoal`, because the nodes act by it, and setting
    that of the cluster, too, because the node writes to the address.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def set(
        self,
        url: str,
        *,
        idle: timedelta | float | None = None,
        files: bool = False,
        dry_run: bool = False,
        durability: Durability | None = None,
    ) -> requests.TieringView:
        """Have the chunks of threads to which nothing was written for `idle` (seconds, or a timedelta) moved to `url`.

        With `files`, files go there within a minute after they were put, and stay there when they are read; without `idle`
        nothing else goes.

        With `dry_run` nothing is recorded or moved: `idle_threads` and `idle_bytes` of the answer say what would move from the
        node that serves.

        Raises:
            InvalidInput: it is no address, or one that the node's operator does not allow; or `idle` is below a minute, or
                neither that nor `files` is given.
            BackupUnreachable: the serving node cannot write, read and delete there. Nothing was recorded.
        """
        idle_ms = as_duration_ms(idle, what="idle") or 0
        return await flows.set_rule(
            self._connection, self._space, url, idle_ms, files=files, dry_run=dry_run, durability=durability
        )

    async def get(self) -> requests.TieringView:
        """The rule, and what the node that serves has in the object store."""
        return await self._connection.read(requests.ReadTiering(self._space))

    async def unset(self, *, durability: Durability | None = None) -> requests.TieringView:
        """Move nothing any more, and bring all back, which the nodes do by themselves. Returns what is still away."""
        return await flows.unset_rule(self._connection, self._space, durability=durability)

    async def run(self) -> requests.TieringView:
        """Move now, at the node that serves, what is idle, or bring back what is to come back.

        Raises:
            BackupUnreachable: the object store failed. Nothing is lost; what was moved before stays there.
        """
        return await self._connection.read(requests.RunTiering(self._space))
