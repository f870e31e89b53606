"""`ShoalState`: what the Agent Framework keeps, on one store."""

from __future__ import annotations

from shoal.client.store import Store
from shoal.integrations.base import OnStore
from shoal.integrations.microsoft.checkpoints import NAME, ShoalCheckpointStorage
from shoal.integrations.microsoft.history import ShoalHistoryProvider


class ShoalState(OnStore):
    """The `checkpoints` of workflows and the `history` of agents in one space.

    For other options make a `ShoalCheckpointStorage` or a `ShoalHistoryProvider` on a store that is open.
    """

    SPACE = NAME

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalState.open`.
        """
        name = space or self.SPACE
        self.checkpoints = ShoalCheckpointStorage(store, space=name)
        self.history = ShoalHistoryProvider(store, space=name)
