"""What a data type makes of a write request."""

from __future__ import annotations

from typing import NamedTuple

from shoal.node.mutation import NOTHING, Attached, Change
from shoal.protocol.requests import Added, Appended, Assigned, DocumentJson, Saved, Updated

WriteReply = Saved | Appended | Updated | DocumentJson | Added | Assigned


class Decision(NamedTuple):
    """The change, already applied within the transaction; None if nothing needs to change."""

    change: Change | None
    attached: Attached
    reply: WriteReply
    id: str = ""  # Of the checkpoint or event, for watchers.

    @classmethod
    def nothing(cls, reply: WriteReply) -> Decision:
        return cls(None, NOTHING, reply)
