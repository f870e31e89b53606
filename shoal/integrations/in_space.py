"""What an integration keeps in one space: on a store that is open, on one of its own, or on nodes."""

from __future__ import annotations

from shoal.client.store import Store
from shoal.integrations.bridge import Bridge
from shoal.integrations.opening import OnStore, checked_store


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
