"""Looking back over a thread: its checkpoints, newest first, and the labels that some have.

Laws:
- A page is one request; the next begins where it ended. Who stops early asks for no more.
- Looking moves no position: what a save builds on stays what it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Connection
from shoal.client.thread.schema import Declared
from shoal.errors import InvalidInput
from shoal.protocol import requests
from shoal.protocol.requests import Durability
from shoal.workflows.checkpoint import Checkpoint, shown_checkpoint


@named
class ThreadHistory:
    """What a `Thread` offers of its past."""

    space: str
    name: str
    _connection: Connection
    _declared: Declared | None

    async def history(
        self,
        *,
        branch: str = "main",
        before: str | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | None = None,
        author: str | None = None,
        states: bool = False,
        stale: bool = False,
    ) -> AsyncIterator[Checkpoint]:
        """Checkpoints from the branch's winner (or strictly before `before`) back, newest first.

        `filter`: only those whose metadata has these keys with these values; `author`: only theirs. `stale`: see `Store`.
        """
        if filter is not None and not isinstance(filter, Mapping):
            raise InvalidInput(f"filter is a mapping of metadata keys to values, not {type(filter).__name__}.")
        wanted = {name: values.encode(value, where=f"filter[{name!r}]") for name, value in (filter or {}).items()}
        while limit is None or limit > 0:
            asked = 100 if limit is None else min(limit, 100)
            request = requests.History(self.space, self.name, branch, before, asked, states, wanted, author)
            page = await self._connection.read(request, stale=stale)
            for found in page.items:
                shown = self._declared.shown(found) if self._declared is not None and states else found
                yield shown_checkpoint(shown, channels=states)
            if not page.more:
                return
            before = page.next or page.items[-1].id
            limit = None if limit is None else limit - len(page.items)

    async def labels(self, prefix: str = "", *, reverse: bool = False, stale: bool = False) -> AsyncIterator[tuple[str, str]]:
        """Labels in byte order, each with the id of the checkpoint that has it. `stale`: see `Store`."""
        after: str | None = None
        while True:
            request = requests.ReadLabels(self.space, self.name, prefix=prefix, after=after, reverse=reverse)
            page = await self._connection.read(request, stale=stale)
            for found in page.items:
                yield found.label, found.checkpoint.id
            if not page.more:
                return
            after = page.items[-1].label

    async def unlabel(self, *labels: str, key: str | None = None, durability: Durability | None = None) -> int:
        """Remove these labels from their checkpoints, and return how many existed."""
        request = requests.Unlabel(self.space, self.name, list(labels))
        reply = await self._connection.write(request, key=key, durability=durability)
        return reply.count
