"""How much is done without a turn for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


class Turns:
    """Counts what a method is given, by turns of the loop: `most` of it came within one turn, `all` altogether."""

    def __init__(self, patch: pytest.MonkeyPatch, of: Any, method: str, size: Callable[..., int]) -> None:
        self.most = self.all = self._now = 0
        self._handle: asyncio.Handle | None = None
        sound = getattr(of, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            amount = size(*arguments, **named)
            self._now += amount
            self.all += amount
            self.most = max(self.most, self._now)
            return sound(*arguments, **named)

        patch.setattr(of, method, counted)

    async def __aenter__(self) -> Turns:
        self.most = self.all = 0
        self._next()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def _next(self) -> None:
        self._now = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)
