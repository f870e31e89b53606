"""What an integration keeps in one space: on a store that is open, on one of its own, or on nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar, Self

from shoal import opening
from shoal.client.store import Store
from shoal.config import Config
from shoal.integrations.bridge import Bridge
from shoal.integrations.opening import Opening, checked_store
from shoal.protocol.requests import Durability
from shoal.protocol.session import Credential


class InSpace:
    """Something of a framework that keeps its state in a space. Its methods can be called on any loop."""

    SPACE: ClassVar[str]
    """The name of the space, if none is given."""

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `open`.
        """
        self._connection = checked_store(store, type(self).__name__).connection
        self._space = store.space(self.SPACE if space is None else space)
        self._bridge = Bridge()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        space: str | None = None,
        config: Config | None = None,
        durability: Durability = "local",
    ) -> Opening[Self]:
        """One on an embedded store: `async with` or `with`. See `shoal.open`, also for what it raises."""
        return Opening(
            lambda: opening.open(directory, config=config, durability=durability), lambda store: cls(store, space=space)
        )

    @classmethod
    def connect(
        cls,
        urls: str | Sequence[str],
        *,
        token: Credential | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        space: str | None = None,
        config: Config | None = None,
        durability: Durability = "local",
        wait: float = 0.0,
    ) -> Opening[Self]:
        """One on a node, or on any of several: `async with` or `with`. See `shoal.connect`."""
        return Opening(
            lambda: opening.connect(urls, token=token, tls_ca=tls_ca, config=config, durability=durability, wait=wait),
            lambda store: cls(store, space=space),
        )
