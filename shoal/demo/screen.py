"""Where a run is shown: something live on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

_REFRESH_PER_SECOND = 8


class Screen:
    """A context manager around the survey; between `with` and its end it is live."""

    def __init__(self, console: Console, render: Callable[[], RenderableType]) -> None:
        self._console = console
        self._render = render
        self._live: Live | None = None

    def __enter__(self) -> Self:
        # A dumb terminal cannot move its cursor: it gets the lines of a pipe.
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Not before now: it renders at once, and a subclass's `__init__` has returned only here.
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=_REFRESH_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def say(self, line: str) -> None:
        """One line, above what is live if anything is. Rich markup is understood."""
        self._console.print(line, highlight=False, soft_wrap=True)
