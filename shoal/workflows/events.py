"""An entry of a thread's journal, as its readers get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal import values


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the journal."""

    id: str
    key: str | None
    time: datetime
    late: bool  # It arrived after events that come later in the journal's order had been read.
    cursor: bytes = field(repr=False)  # Read on after this event with `read(after=…)`.
    _event: bytes = field(repr=False)

    @property
    def event(self) -> Any:
        """What was appended, decoded anew at each access.

        Raises:
            InvalidValue: its type is not registered here.
        """
        return values.decode(self._event)

    @property
    def packed(self) -> bytes:
        """The same, as it is stored."""
        return self._event
