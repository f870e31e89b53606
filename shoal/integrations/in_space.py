"""The state that an integration keeps in one space, and reads as its store's durability says."""

from __future__ import annotations

from shoal.client.store import Store
from shoal.integrations.bridge import Bridge
from shoal.integrations.opening import OnStore, checked_store
from shoal.kinds.step.flows.resume import catch_up


class InSpace(OnStore):
    """Something of a framework that keeps its state in a space. Its methods can be called on any loop."""

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `open`.
        """
        self._connection = checked_store(store, type(self).__name__).connection
        self._space = store.space(self.SPACE if space is None else space)
        self._bridge = Bridge()

    async def _caught_up(self, name: str) -> None:
        """With durability `quorum` or `all`, let the node fetch what any node has acknowledged of `name`, and of all that is in
        its partition. Without a majority the node's own state counts, and a write will say what is missing.
        """
        if self._connection.durability in ("quorum", "all"):
            await catch_up(self._connection, self._space.name, name)
