"""The data type's own key for a mutation that its request gave none.

Idempotency belongs to the data type: where one request went to two nodes, and made
two operations, the one with the least dot counts.
"""

from __future__ import annotations

# No key of a user's has a control character in it.
_IMPLIED = "\x00"


def implied_key(request_key: str | None, nth: int) -> str | None:
    """For the `nth` mutation of a request with this key."""
    return None if request_key is None else f"{_IMPLIED}{nth}{_IMPLIED}{request_key}"


def users_key(key: str | None) -> str | None:
    """A key as the user knows it."""
    return None if key is None or key.startswith(_IMPLIED) else key
