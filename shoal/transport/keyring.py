"""The keys that a node proves to its peers and takes from them, and the steps in which a cluster changes its key;
and the token that a client shows to nodes.

A node has one key, or two while the cluster changes it. In the file of `cluster_key_file` they are lines:

    KEY             proven and accepted
    new KEY         accepted, and proven from the next step on
    old KEY         accepted, and proven until the step before

Nothing here reads a file.

Laws:
- Two nodes of neighbouring steps take each other: each accepts what the other proves.
- So a step is taken only once every member has the one before it, and a member that does not answer does not have it.
- A key that could be guessed is no key, and no key is in an error.

The keys of a node for its peers, as they are now: from its settings, or from a file that is read again when it changes.

Laws:
- A handshake uses the keys that were loaded last.
- A broken file changes nothing: the former keys stay in use, and `trouble` says why.
- A file that every user of the machine may read is refused.

The token that a client shows to nodes: from the caller, a file, a function, or the environment.

Laws:
- A file is read, and a function called, for each connection and each request that is refused for its token, so that a new
  token is used as soon as there is one.
- A token is in no `repr`, message or traceback.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping, Sequence
from inspect import isawaitable
from pathlib import Path, PurePath

from shoal.config import Config, check_cluster_key
from shoal.errors import InvalidConfig
from shoal.protocol.session import Credential
from shoal.raising import named
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


_BYTES_MAX = 16 * 1024
_EVERYBODY = 0o007


class ClusterKey:
    """The keys of one node.

    Raises:
        InvalidConfig: the file cannot be used.
    """

    def __init__(self, config: Config) -> None:
        self._file = Path(config.cluster_key_file) if config.cluster_key_file else None
        self._stamp = self._stamped()
        self.ring = Keyring(config.cluster_key) if self._file is None else read(self._file)
        self.trouble = ""
        """Why the file on the disk is not in use; empty if it is."""

    @property
    def is_file(self) -> bool:
        """Whether the keys can change without a restart."""
        return self._file is not None

    def has_changed(self) -> bool:
        """Whether the file was written, or given other rights, since it was looked at last."""
        return self._stamped() != self._stamp

    def reload(self) -> None:
        """Load the file again, if there is one.

        Raises:
            InvalidConfig: it cannot be used. Nothing has changed.
        """
        if self._file is None:
            return
        self._stamp = self._stamped()
        try:
            self.ring = read(self._file)
        except InvalidConfig as error:
            self.trouble = error.message.replace(" Nothing was changed.", "") + " The former keys stay in use."
            raise
        self.trouble = ""

    def _stamped(self) -> tuple[int, ...] | None:
        try:
            status = None if self._file is None else os.stat(self._file)
        except OSError:
            return None
        if status is None:
            return None
        # A file that was refused for its rights or its owner may be given others alone: that changes its ctime only.
        return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read(file: Path) -> Keyring:
    """The keys in a file.

    Raises:
        InvalidConfig: it cannot be read, everybody may read it, or it is no such file.
    """
    try:
        if os.stat(file).st_mode & _EVERYBODY:
            raise InvalidConfig(
                f"every user of this machine may read or change the cluster's key in {file}. Nothing was changed. "
                f"Make it private: chmod 600 {file}",
                field="cluster_key_file",
            )
        with file.open("rb") as opened:
            text = opened.read(_BYTES_MAX).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no text"
        raise InvalidConfig(
            f"the cluster's key cannot be read from {named(file)}: {why}. Nothing was changed.", field="cluster_key_file"
        ) from None
    return parsed(text)


_CREDENTIALS_BYTES_MAX = 64 * 1024  # Nodes accept far fewer; this bounds what is read.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Credentials:
    """Where a client's token comes from.

    Raises:
        InvalidConfig: it is no token, file or function.
    """

    __slots__ = ("_given",)

    def __init__(self, given: Credential | None) -> None:
        if isinstance(given, str):
            given = _checked(given, "the token")
        elif not (given is None or callable(given) or isinstance(given, PurePath)):
            raise InvalidConfig(
                f"token must be a text, the path of a file (pathlib.Path), or a function; got {type(given).__name__}. "
                "Nothing was sent.",
                field="token",
            )
        self._given = given

    def __repr__(self) -> str:
        return "Credentials(…)" if self._given is not None else "Credentials(None)"

    @property
    def is_renewable(self) -> bool:
        """Whether the next token may be another."""
        return self._given is not None and not isinstance(self._given, str)

    async def token(self) -> str | None:
        """The token as it is now; None if there is none.

        Raises:
            InvalidConfig: the file cannot be read, or holds no token; or the function returned none.
        """
        given = self._given
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, PurePath):
            return _checked(_read(Path(given)), f"the file {given}")
        found = given()
        text = await found if isawaitable(found) else found
        return _checked(text, "what the function returned as a token")


def from_environment(environment: Mapping[str, str]) -> Credential | None:
    """The token that SHOAL_TOKEN_FILE or SHOAL_TOKEN names."""
    if environment.get("SHOAL_TOKEN_FILE"):
        return Path(environment["SHOAL_TOKEN_FILE"])
    return environment.get("SHOAL_TOKEN") or None


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_CREDENTIALS_BYTES_MAX).decode("ascii", "replace")
    except OSError as error:
        raise InvalidConfig(
            f"the token in {named(file)} cannot be read: {error.strerror}. Nothing was sent.", field="token"
        ) from None


def _checked(text: object, what: str) -> str:
    """The token in a text, which may end with a line break. What is wrong with it is told without showing it."""
    token = text.strip() if isinstance(text, str) else ""
    if not _TOKEN.fullmatch(token) or len(token) > _CREDENTIALS_BYTES_MAX:
        raise InvalidConfig(
            f"{what} is no token: it must be one line of letters, digits and `._~+/=-`. Nothing was sent. "
            "`shoal token create` makes one.",
            field="token",
        )
    return token
