"""What a data type makes of a write request."""

from __future__ import annotations

from msgspec import Struct

from shoal.node.attached import NOTHING, Attached
from shoal.node.mutation import Change
from shoal.protocol.requests import WriteReply


class Made(Struct, frozen=True):
    """A change, already applied within the transaction."""

    change: Change
    attached: Attached = NOTHING
    id: str = ""  # Of the checkpoint or event, for watchers.


class Decision(Struct, frozen=True):
    """The reply, and the changes behind it; none if nothing needs to change.

    The first change is stamped with the site's stamp, each other with the next `nth`.
    """

    reply: WriteReply
    made: tuple[Made, ...] = ()
    remembered: bool = (
        False  # The key is kept though nothing changed: what was to be removed may be made before it comes again.
    )
