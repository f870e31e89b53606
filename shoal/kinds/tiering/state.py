"""The rule of tiering of a space, as it is recorded.

Laws:
- A rule is recorded whole, for a space. Of rules that were set concurrently the latest counts: none of them loses anything.
- A space without a record is left as it is: nothing moves, and nothing comes back. A record without an address says that all
  comes back. So what a node does not know yet does nothing.
- A rule that was restored from a backup moves nothing.
- A record that cannot be read, or that names what this version does not know, is no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from shoal import values
from shoal.errors import ShoalError
from shoal.records import NamedTuple

RULES = "tiering"
"""The map of the space `RESERVED` with the records."""
IDLE_MS_MAX = 2**53


class Rule(NamedTuple):
    """Where the chunks of a space's idle threads go."""

    space: str
    url: str  # Empty: nowhere any more, and all comes back.
    idle_ms: int  # A thread is idle to which nothing was written for so long; 0: none ever is.
    wall_ms: int = 0  # When it was set, by the clock of the node that did it.
    trouble: str = ""  # Why it moves nothing, for people; else empty.
    files: bool = False  # Whether files go as soon as they are put, and stay there when they are read.


def key_of(space: str) -> str:
    """The key of a rule in the map: names may be longer than a key."""
    return sha256(space.encode()).hexdigest()


def packed(rule: Rule) -> bytes:
    """A rule's record."""
    record = {"space": rule.space, "url": rule.url, "idle_ms": rule.idle_ms}
    return values.encode(record | ({"files": True} if rule.files else {}))


def held_back(rule: Rule, restored_ms: int) -> Rule:
    """The rule, which moves nothing if it was there at the time of a restore."""
    if not rule.url or rule.wall_ms > restored_ms:
        return rule
    return rule._replace(
        trouble="the rule was restored from a backup, and moves nothing. If it shall hold here, set it once more "
        "(`shoal tiering set`)."
    )


def read(key: str, records: Sequence[tuple[bytes, int]]) -> Rule | None:
    """The rule of a key, from its concurrent records and their times, the latest last; None if there is none that counts."""
    return next((rule for packed, wall_ms in reversed(records) if (rule := _parsed(key, packed, wall_ms)) is not None), None)


def _parsed(key: str, packed: bytes, wall_ms: int) -> Rule | None:
    try:
        record = values.decode(packed)
    except ShoalError:
        return None
    if not isinstance(record, dict) or record.keys() - {"files"} != {"space", "url", "idle_ms"}:
        return None
    space, url, idle_ms, files = record["space"], record["url"], record["idle_ms"], record.get("files", False)
    if not isinstance(space, str) or not isinstance(url, str) or type(idle_ms) is not int or type(files) is not bool:
        return None
    return Rule(space, url, idle_ms, wall_ms, files=files) if key_of(space) == key and 0 <= idle_ms < IDLE_MS_MAX else None
