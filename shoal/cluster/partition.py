"""The partition that holds an object.

Law: the partition is a function of the space and of the name's tag alone, and never
changes: an object in another partition would be lost. The tag is as in Redis Cluster: the
part between the first `{` and the first `}` after it, if that is not empty; else
the whole name.

A space whose whole name is in braces, such as `{crew}`, is colocated: all its
objects share one partition, so that any of them can be in one batch. This depends
on the name alone, so all nodes and clients agree.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from shoal.names import MEMOIZED_MAX, is_colocated

PARTITIONS = 1024


def tag_of(name: str) -> str:
    """The part of a name that chooses its partition: `crew-7` for `{crew-7}/planner`."""
    opening = name.find("{")
    if opening >= 0:
        closing = name.find("}", opening + 1)
        if closing > opening + 1:
            return name[opening + 1 : closing]
    return name


@lru_cache(maxsize=MEMOIZED_MAX)
def partition_of(space: str, name: str) -> int:
    """The partition, 0 to 1023. The space is length-prefixed, so that ("a", "bc") and ("ab", "c") are independent."""
    encoded = space.encode()
    tag = "" if is_colocated(space) else tag_of(name)
    digest = sha256(len(encoded).to_bytes(2, "big") + encoded + tag.encode()).digest()
    return int.from_bytes(digest[:8], "big") % PARTITIONS
