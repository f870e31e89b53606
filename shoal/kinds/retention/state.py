"""The rules of retention as they are recorded, and when a clock may say what is old.

Laws:
- A rule is recorded whole, for a space and a prefix of its threads' names. A thread has the rule of the longest prefix.
- Of rules that were set concurrently all hold: what goes is let go by each of them. The next one that is set replaces them.
- Rules that were set by the time of a restore let nothing go. That time is a record beside them, so that every node knows it;
  of several the latest holds.
- A record that cannot be read, or that names what this version does not know, lets nothing go, and no shorter prefix
  takes its place.
- Old is what a clock says that is believed: it has run on from a moment when it was believed, or it is at most `GAP_S_MAX`
  ahead of what the directory has seen. A clock that jumps ahead is believed once a rule is set by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from shoal import values
from shoal.errors import ShoalError
from shoal.records import NamedTuple

RULES = "retention"
"""The map of the space `RESERVED` with the records."""
RESTORED = "restored"
"""The key in this map of the time of the last restore. Those of rules are hashes."""
AGE_MS_MAX = 2**53

JUMP_S_MAX = 300.0  # A clock may be set ahead by so much while the node runs: less than any rule's age should be.
GAP_S_MAX = 7 * 86400.0  # So long may a directory have been closed, or without a rule.

_NUMBERS = ("keep_last", "older_than_ms", "threads_older_than_ms", "events_older_than_ms", "finished_older_than_ms")


class Rule(NamedTuple):
    """The bounds for the threads of a prefix. None: that bound is not set."""

    space: str
    prefix: str = ""
    keep_last: int | None = None  # Of each branch.
    older_than_ms: int | None = None  # Of checkpoints; with `keep_last` both must allow it.
    threads_older_than_ms: int | None = None  # Since the last activity. None: no thread goes.
    events_older_than_ms: int | None = None  # Of journals.
    keep_labelled: bool = False  # A thread with a labelled checkpoint does not go as a whole.
    wall_ms: int = 0  # When it was set, by the clock of the node that did it.
    rivals: int = 0  # How many others were set concurrently, and hold as well.
    trouble: str = ""  # What is wrong with its record: then nothing goes.
    finished_older_than_ms: int | None = None  # Of done items of worklists.

    @property
    def prunes(self) -> bool:
        """Whether it lets checkpoints go."""
        return self.keep_last is not None or self.older_than_ms is not None


def key_of(space: str, prefix: str) -> str:
    """The key of a rule in the map: names may be longer than a key."""
    return sha256(f"{len(space)}/{space}{prefix}".encode()).hexdigest()


def packed(rule: Rule) -> bytes:
    """A rule's record."""
    record: dict[str, Any] = {"space": rule.space, "prefix": rule.prefix}
    record |= {name: number for name in _NUMBERS if (number := getattr(rule, name)) is not None}
    return values.encode(record | ({"keep_labelled": True} if rule.keep_labelled else {}))


def packed_restored(until_ms: int) -> bytes:
    """The record of a restore."""
    return values.encode({"until_ms": until_ms})


def read_restored(records: Sequence[bytes]) -> int | None:
    """The time up to which rules wait, from the concurrent records of restores; None if one of them cannot be read."""
    found = 0
    for record in records:
        try:
            read: Any = values.decode(record)
        except ShoalError:
            return None
        until_ms = read.get("until_ms") if isinstance(read, dict) and len(read) == 1 else None
        if not isinstance(until_ms, int) or isinstance(until_ms, bool) or until_ms < 0:
            return None
        found = max(found, until_ms)
    return found


def held_back(rule: Rule, restored_ms: int) -> Rule:
    """The rule, which lets nothing go if it was there at the time of a restore."""
    if rule.trouble or rule.wall_ms > restored_ms:
        return rule
    return rule._replace(
        trouble="it was restored from a backup, and would let go what was brought back. If it shall hold here, set it once "
        "more (`shoal retention set`)"
    )


def read(key: str, records: Sequence[tuple[bytes, int]]) -> Rule | None:
    """The rule of a key, from its concurrent records and their times; None if none of them says whose it is."""
    found = [rule for rule in (_parsed(record, wall_ms) for record, wall_ms in records) if rule is not None]
    found = [rule for rule in found if key_of(rule.space, rule.prefix) == key]
    if not found:
        return None
    trouble = "" if len(found) == len(records) else "a record cannot be read"
    return _together(found, trouble)


def _parsed(packed: bytes, wall_ms: int) -> Rule | None:
    try:
        record = values.decode(packed)
    except ShoalError:
        return None
    if not isinstance(record, dict):
        return None
    space, prefix = record.pop("space", None), record.pop("prefix", None)
    if not isinstance(space, str) or not isinstance(prefix, str):
        return None
    labelled = record.pop("keep_labelled", False)
    numbers = {name: record.pop(name) for name in _NUMBERS if name in record}
    rule = Rule(space, prefix, keep_labelled=bool(labelled), wall_ms=wall_ms, **numbers)
    wrong = [*map(str, record), *("keep_labelled" for _ in range(not isinstance(labelled, bool)))]
    wrong += [name for name, number in numbers.items() if not _is_bound(name, number)]
    return rule._replace(trouble=f"its record has no meaning here for {', '.join(sorted(wrong))}") if wrong else rule


def _is_bound(name: str, number: Any) -> bool:
    least = 1 if name == "keep_last" else 0
    return isinstance(number, int) and not isinstance(number, bool) and least <= number < AGE_MS_MAX


def _together(rules: Sequence[Rule], trouble: str) -> Rule:
    """The rule that lets go what all of these let go."""
    first = rules[0]
    trouble = trouble or next((rule.trouble for rule in rules if rule.trouble), "")
    if trouble:
        return Rule(first.space, first.prefix, wall_ms=max(rule.wall_ms for rule in rules), trouble=trouble)
    # A rule that prunes no checkpoints lets none go, and of the others each bound keeps what it keeps.
    prunes = all(rule.prunes for rule in rules)
    return Rule(
        first.space,
        first.prefix,
        _most(rule.keep_last for rule in rules) if prunes else None,
        _most(rule.older_than_ms for rule in rules) if prunes else None,
        _all(rule.threads_older_than_ms for rule in rules),
        _all(rule.events_older_than_ms for rule in rules),
        any(rule.keep_labelled for rule in rules),
        max(rule.wall_ms for rule in rules),
        len(rules) - 1,
        finished_older_than_ms=_all(rule.finished_older_than_ms for rule in rules),
    )


def _most(bounds: Iterable[int | None]) -> int | None:
    return max((bound for bound in bounds if bound is not None), default=None)


def _all(bounds: Iterable[int | None]) -> int | None:
    found = list(bounds)
    return None if None in found else _most(found)


def rule_of(rules: Iterable[Rule], thread: str) -> Rule | None:
    """The rule of a thread, among those of its space."""
    mine = (rule for rule in rules if thread.startswith(rule.prefix))
    return max(mine, key=lambda rule: len(rule.prefix), default=None)


# ── time ──────────────────────────────────────────────────────────────────────


class Moment(NamedTuple):
    """A wall clock and a steady one, read together."""

    wall_ms: int
    steady_s: float


def disbelief(now: Moment, believed: Moment | None, seen_ms: int, rule_ms: int) -> str:
    """Why a clock is not believed, for people; empty if it is.

    `believed` is a moment of this opening at which it was; None: there was none yet. `seen_ms` is the last time that the
    directory has seen; 0: none. `rule_ms` is when the latest rule was set.
    """
    if believed is not None:
        expected_ms = believed.wall_ms + round((now.steady_s - believed.steady_s) * 1000)
        bound_s = JUMP_S_MAX
    else:
        expected_ms, bound_s = max(seen_ms, rule_ms), GAP_S_MAX
    ahead_s = (now.wall_ms - expected_ms) / 1000
    is_confirmed = rule_ms > expected_ms + bound_s * 1000 and now.wall_ms - rule_ms <= GAP_S_MAX * 1000
    if ahead_s <= bound_s or is_confirmed:
        return ""
    since = "ahead of what it should be" if believed is not None else "later than all that this directory has seen"
    return (
        f"this node's clock is {_shown(ahead_s)} {since}, so it does not say what is old. Nothing is pruned. If it is right, "
        "set the rule once more (`shoal retention set`); else set the clock"
    )


def _shown(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
