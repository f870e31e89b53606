"""The keys that a node proves to its peers and takes from them, and the steps in which a cluster changes its key.

A node has one key, or two while the cluster changes it. In the file of `cluster_key_file` they are lines:

    KEY             proven and accepted
    new KEY         accepted, and proven from the next step on
    old KEY         accepted, and proven until the step before

Nothing here reads a file.

Laws:
- Two nodes of neighbouring steps take each other: each accepts what the other proves.
- So a step is taken only once every member has the one before it, and a member that does not answer does not have it.
- A key that could be guessed is no key, and no key is in an error.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from shoal.config import check_cluster_key
from shoal.errors import InvalidConfig
from shoal.records import NamedTuple

_NAME_CHARS = 12
_KEYS_MAX = 2
_HOW = "A line is KEY, and one more may be `new KEY` or `old KEY` (docs/TLS.md). Nothing was changed."


class Keyring(NamedTuple):
    """The keys that a node proves, and those that it accepts beside them. At most one of `new` and `old` is there."""

    key: str  # Empty: none is proven, and none asked for.
    new: str = ""
    old: str = ""

    @property
    def also(self) -> tuple[str, ...]:
        """The keys that are accepted, and not proven."""
        return tuple(key for key in (self.new, self.old) if key)

    @property
    def names(self) -> list[str]:
        """The lines of the file with names instead of keys, to be shown and compared."""
        return [f"{role} {name_of(key)}".lstrip() for role, key in self._held]

    @property
    def text(self) -> str:
        """The file."""
        return "".join(f"{role} {key}\n".lstrip() for role, key in self._held)

    @property
    def _held(self) -> list[tuple[str, str]]:
        """Roles and keys."""
        return [(role, key) for role, key in (("", self.key), ("new", self.new), ("old", self.old)) if key]

    def begun(self, new: str) -> Keyring:
        """The first step: both are accepted.

        Raises:
            InvalidConfig: the new key is weak, or the one that is there.
        """
        return parsed(Keyring(self.key, new=new).text)

    @property
    def next(self) -> Keyring | None:
        """The next step of a change that is under way; None if there is none."""
        if self.new:
            return Keyring(self.new, old=self.key)
        return Keyring(self.key) if self.old else None


def name_of(key: str) -> str:
    """A name of a key, from which it cannot be computed. It can be tried, as a proof can: so keys are drawn, and long."""
    return hmac.digest(key.encode(), b"shoal cluster key name", "sha256").hex()[:_NAME_CHARS] if key else ""


def parsed(text: str) -> Keyring:
    """The keys in a file.

    Raises:
        InvalidConfig: it has no key, too many, a weak one, or one twice.
    """
    held: dict[str, str] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("#"):
            continue
        before, _, after = line.partition(" ")
        role, key = (before, after.strip()) if before in ("new", "old") else ("", line)
        if role in held:
            raise _wrong("it has two keys of one kind")
        check_cluster_key(key)
        held[role] = key
    if "" not in held:
        raise _wrong("it has no key that is proven")
    if len(held) > _KEYS_MAX:
        raise _wrong("it has more than two keys; a key is changed once the change before is over")
    if len(set(held.values())) < len(held):
        raise _wrong("it has the same key twice")
    return Keyring(held[""], held.get("new", ""), held.get("old", ""))


def _wrong(why: str) -> InvalidConfig:
    return InvalidConfig(f"the file of the cluster key cannot be used: {why}. {_HOW}", field="cluster_key_file")


def strangers(ring: Keyring, members: Mapping[str, Sequence[str]]) -> list[str]:
    """The members with which a node that has this file could have no link."""
    proven, accepted = name_of(ring.key), {name_of(key) for key in (ring.key, *ring.also)}
    return [
        member
        for member, (theirs, *beside) in ((name, names or [""]) for name, names in members.items())
        if theirs not in accepted or proven not in {theirs, *(each.rpartition(" ")[2] for each in beside)}
    ]
