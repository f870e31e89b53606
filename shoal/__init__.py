"""Shoal: a durable, replicated state layer for AI agents.

    async with shoal.open("./state") as store:
        thread = store.space("crew").thread("researcher-1")
        await thread.save({"messages": ["hello"], "step": 1})

An acknowledged write survives `kill -9` and power loss. `shoal.connect` gives
the same store over the network; `shoal.sync` has both as blocking calls.
"""

from __future__ import annotations

from shoal import errors, sync
from shoal.client.watching import Reset
from shoal.config import Config
from shoal.opening import connect, open
from shoal.protocol.requests import NO_HEAD
from shoal.schemas import Schema
from shoal.values import register
from shoal.version import __version__

__all__ = ["NO_HEAD", "Config", "Reset", "Schema", "__version__", "connect", "errors", "open", "register", "sync"]
