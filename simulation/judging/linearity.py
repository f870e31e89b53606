"""Judge histories of the quorum register: is there one order of all operations that explains what each client was told?

Laws:
- Each change writes content of its own and names the version that it expects, so versions name the order. What remains to be
  checked is that it is one order, that it does not contradict time, and that nothing is there that was denied.
- A change of unknown outcome may have been made at any time after it began, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

NEVER = float("inf")


@dataclass(slots=True)
class Operation:
    """One read or change of a key. `version` is what its client was told, if it was told one."""

    number: int  # Of the change, and its content; 0: a read.
    expected: int
    begun_s: float
    ended_s: float = NEVER
    outcome: Literal["made", "refused", "shown", "denied", "unknown"] = "unknown"
    version: int = -1
    content: int = 0  # The change whose content was shown; 0: none.

    def __str__(self) -> str:
        what = f"change {self.number} of version {self.expected}" if self.number else "a read"
        return f"{what} ({self.outcome}, version {self.version}, {self.begun_s:.4f} to {self.ended_s:.4f})"


def broken(operations: Sequence[Operation]) -> Iterator[str]:
    """What no order of the operations on one key explains."""
    told = [each for each in operations if each.version >= 0]
    changes = {each.number: each for each in operations if each.number}
    contents: dict[int, int] = {0: 0}
    for each in told:
        if each.outcome == "refused":
            if each.version == each.expected:
                yield f"{each} was refused, and expected what there was"
            continue
        shown = each.number if each.outcome == "made" else each.content
        if contents.setdefault(each.version, shown) != shown:
            yield f"{each} shows change {shown}, and version {each.version} is change {contents[each.version]}"
    yield from _unexplained(contents, changes, told)
    for each in told:
        before = max((other.version for other in told if other.ended_s < each.begun_s), default=0)
        if each.version < before or (each.outcome == "made" and each.version <= before):
            yield f"{each} began after version {before} was told"


def _unexplained(contents: dict[int, int], changes: dict[int, Operation], told: Sequence[Operation]) -> Iterator[str]:
    for version, number in contents.items():
        made = changes.get(number)
        if version == 0:
            continue
        if made is None or made.outcome in ("refused", "denied") or made.expected != version - 1:
            yield f"version {version} is change {number}, which did not make it: {made}"
        elif any(each.version >= version and each.ended_s < made.begun_s for each in told):
            yield f"version {version} was told before {made} began"
    twice = [number for number in contents.values() if number and list(contents.values()).count(number) > 1]
    if twice:
        yield f"changes {sorted(set(twice))} were made twice"
    lost = {each.expected + 1 for each in changes.values() if each.outcome == "unknown"}
    for version in range(1, max((each.version for each in told), default=0)):
        if version not in contents and version not in lost:
            yield f"nobody made version {version}, and there are later ones"
