"""The claims of a token, once it is verified."""

from __future__ import annotations

from typing import Any

from shoal.access.grants import Grant, shown
from shoal.records import NamedTuple

TOKEN_BYTES_MAX = 3584  # One token; browsers keep no cookie of more than 4096 bytes.
TOKEN_GRANTS_MAX = 64  # Grants of one token.


class Token(NamedTuple):
    """A token's content. Times are in seconds since 1970."""

    id: str  # By which it is revoked.
    author: str  # The name that the writes of its holder carry.
    issuer: str
    audience: str  # The name of the cluster that it is for.
    key_id: str  # Of the key that signed it.
    begins_s: float
    ends_s: float
    grants: list[Grant]

    def told(self) -> dict[str, Any]:
        """The content, for people and programs."""
        return {
            "id": self.id,
            "author": self.author,
            "issuer": self.issuer,
            "cluster": self.audience,
            "key": self.key_id,
            "begins": int(self.begins_s),
            "ends": int(self.ends_s),
            "grants": [shown(grant) for grant in self.grants],
        }
