"""How much is done without a turn for others, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shoal.testing.machines import VirtualLoop


class Turns:
    """Counts what a method is given, by turns of the loop: `most` of it came within one turn, `all` altogether."""

    def __init__(self, patch: pytest.MonkeyPatch, of: Any, method: str, size: Callable[..., int]) -> None:
        self.most = self.all = self._now = self._turn = 0
        sound = getattr(of, method)

        def counted(*arguments: Any, **named: Any) -> Any:
            amount = size(*arguments, **named)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            if loop.turns != self._turn:
                self._turn, self._now = loop.turns, 0
            self._now += amount
            self.all += amount
            self.most = max(self.most, self._now)
            return sound(*arguments, **named)

        patch.setattr(of, method, counted)
