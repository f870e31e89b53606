"""The data type's own key for a mutation whose request names none.

Idempotency belongs to the data type: if one request went to two nodes and made
two operations, the one with the least dot counts.

A key is derived from the request's key, the place of the write in the request, and, if the write makes several mutations,
the mutation's place among these. It does not depend on what the other writes of the request changed, which may differ from
node to node.
"""

from __future__ import annotations

from shoal.crdt import expiring
from shoal.crdt.clock import COUNTER_BITS, wall_ms_of
from shoal.errors import BadOperation
from shoal.protocol.keys import is_made

# A user's key has no control characters.
_STAYS, _EXPIRES = "\x00", expiring.MARK.decode()
_IMPLIED = (_STAYS, _EXPIRES)


def implied_key(request_key: str | None, place: str) -> str | None:
    """The key for the mutation at this place of a request with this key; None if the request has none."""
    if request_key is None:
        return None
    if is_made(request_key):
        return f"{_EXPIRES}{request_key}{_EXPIRES}{place}"  # The time comes first, so that a sweep finds the old ones.
    return f"{_STAYS}{place}{_STAYS}{request_key}"


def users_key(key: str | None) -> str | None:
    """The key if a user chose it; None if it is missing or implied."""
    return None if key is None or key.startswith(_IMPLIED) else key


def expires(key: str) -> bool:
    """Whether a key was derived from one that a client made."""
    return key.startswith(_EXPIRES)


def expired_hlc(hlc: int, now_ms: int, window_s: int) -> int:
    """The time (HLC) up to which no request can be repeated any more, for an operation at `hlc` of a node whose clock shows
    `now_ms`: the clocks of operations may be ahead. An eighth of the window is for clocks that differ.

    Until then a directory that was set back, and does not know what it has forgotten, may take a request once more. After that
    it refuses the key by its own clock.
    """
    return max(0, min(now_ms, wall_ms_of(hlc)) - window_s * 1000 * 9 // 8) << COUNTER_BITS


def is_of(key: str | None, request_key: str | None) -> bool:
    """Whether `key` was derived from this request's key."""
    if key is None or request_key is None:
        return False
    return key.startswith(f"{_EXPIRES}{request_key}{_EXPIRES}") or (
        key.startswith(_STAYS) and key.endswith(f"{_STAYS}{request_key}")
    )


def check(key: str | None) -> None:
    """Check the key of a change that a peer sent.

    Raises:
        BadOperation: it says that it expires, and does not say when.
    """
    if key is not None and key.startswith(_EXPIRES) and not is_made(key[1:].partition(_EXPIRES)[0]):
        raise BadOperation("the key of a change is malformed. Nothing of it was written.", reason="content")
