"""What a handle says of who saves with it: its name, what it runs with, and what it had read.

Laws:
- A handle without an author says nothing of what it had read: it costs nothing.
- What is said is said when it is news since this handle's last save on the branch; every
  `SAID_AGAIN_EVERY` saves all of it is said again, so that it is found without reading far back.
- What it had read is the session's bookmark, but for the thread's own partition, and
  bounded by `seen_bytes_max`: what has no place remains news.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from shoal import values
from shoal.client.connection import Connection
from shoal.crdt.dot import VersionVector
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Save, Saved

SAID_AGAIN_EVERY = 32
_ENTRY_BYTES_MAX = 9  # Of a packed partition, beside its vector.
_HEAD_BYTES_MAX = 4  # Of a packed bookmark.


class _Said(Struct):
    """On one branch."""

    saves: int = 0
    seen: dict[int, VersionVector] = field(default_factory=dict)


class Author:
    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        configuration: Mapping[str, Any] | None = None,
        dependencies: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.setting = setting_of(configuration, dependencies)
        self._connection = connection
        self._partition: int | None = None  # The thread's own; known once it has saved.
        self._said: dict[str, _Said] = {}

    def signed(self, request: Save) -> Save:
        """The request, with what is to be said with it."""
        if not self.name and not self.setting:
            return request
        said = self._said.get(request.branch) or _Said()
        again = said.saves % SAID_AGAIN_EVERY == 0
        return replace(
            request,
            author=self.name,
            setting=self.setting if again else b"",
            seen=self._news({} if again else said.seen) if self.name else b"",
        )

    def noted(self, request: Save, saved: Saved) -> None:
        """The request was answered."""
        if not self.name and not self.setting:
            return
        self._partition = saved.partition
        said = self._said.setdefault(request.branch, _Said())
        if said.saves % SAID_AGAIN_EVERY == 0:
            said.seen = {}
        said.saves += 1
        said.seen.update(Bookmark.unpack(request.seen))

    def _news(self, told: Mapping[int, VersionVector]) -> bytes:
        room = self._connection.config.seen_bytes_max - _HEAD_BYTES_MAX
        news = Bookmark()
        for partition, vector in self._connection.session.bookmark:
            if partition == self._partition or told.get(partition) == vector:
                continue
            room -= len(vector.pack()) + _ENTRY_BYTES_MAX
            if room < 0:
                break
            news.note(partition, vector)
        return news.pack() if len(news) else b""


def setting_of(configuration: Mapping[str, Any] | None, dependencies: Mapping[str, str] | None) -> bytes:
    """A packed map: SHA-256 of the configuration, whatever the order of its keys, and versions by name.

    Raises:
        InvalidValue: a value of the configuration cannot be serialised.
    """
    setting: dict[str, Any] = {}
    if configuration is not None:
        setting["configuration"] = sha256(values.encode(_sorted(dict(configuration)), where="configuration")).hexdigest()
    if dependencies is not None:
        setting["dependencies"] = dict(sorted(dependencies.items()))
    return values.encode(setting, where="dependencies") if setting else b""


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list):
        return [_sorted(element) for element in value]
    return value
