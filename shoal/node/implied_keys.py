"""The data type's own key for a mutation whose request names none.

Idempotency belongs to the data type: if one request went to two nodes and made
two operations, the one with the least dot counts.
"""

from __future__ import annotations

# A user's key has no control characters.
_IMPLIED = "\x00"


def implied_key(request_key: str | None, nth: int) -> str | None:
    """The key for the `nth` mutation of a request with this key; None if the request has none."""
    return None if request_key is None else f"{_IMPLIED}{nth}{_IMPLIED}{request_key}"


def users_key(key: str | None) -> str | None:
    """The key if a user chose it; None if it is missing or implied."""
    return None if key is None or key.startswith(_IMPLIED) else key
