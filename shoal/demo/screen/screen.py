"""The screen of a run: live on a terminal, otherwise plain lines."""

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
        # A dumb terminal cannot move its cursor, so it gets plain lines.
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Made here and not in `__init__`, because it renders at once, after which a subclass must be complete.
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=_REFRESH_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """Whether the display is redrawn in place; if not, it prints lines."""
        return self._live is not None

    def say(self, line: str) -> None:
        """Print one line of Rich markup, above the live display if there is one."""
        self._console.print(line, highlight=False, soft_wrap=True)
