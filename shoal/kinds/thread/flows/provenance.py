"""The provenance of a save, and the settings of authors.

The provenance of a save: its author, the author's setting, and its bookmark.

Laws:
- Without an author a save carries no bookmark and costs nothing more.
- A save carries the changes since the last save on the branch. Every `SAID_AGAIN_EVERY` saves
  it carries everything, so that readers need not go far back.
- The bookmark is the session's, without the thread's own partition. It is bounded by
  `SEEN_BYTES_MAX`: partitions that do not fit go with the next save.

An author's setting, which is a hash of its configuration and the versions of its dependencies, and how two settings differ.

Law: a part that only one of two settings has is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from shoal import values
from shoal.crdt.dot import VersionVector
from shoal.errors import DriftRefused
from shoal.protocol.bookmark import SEEN_BYTES_MAX, Bookmark
from shoal.protocol.requests import Save, Saved
from shoal.workflows.connection import Connection

_NAMED_MAX = 10  # Names in a text.


def setting_of(configuration: Mapping[str, Any] | None, dependencies: Mapping[str, str] | None) -> bytes:
    """A packed map: the SHA-256 of the configuration with its keys sorted, and versions by name. Empty if both are None.

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


def drift_refused(thread: str, differences: tuple[str, ...]) -> DriftRefused:
    """The error for a setting that differs."""
    return DriftRefused(
        f"thread {thread!r} was saved with another setting: {some(differences)}. Nothing was written. "
        'Run with the recorded setting, or resume with on_drift="warn".',
        differences=list(differences),
    )


def differences_of(recorded: Mapping[str, Any], running: Mapping[str, Any]) -> Iterator[str]:
    """The differences between a running setting and a recorded one, in words."""
    if "configuration" in recorded and "configuration" in running and recorded["configuration"] != running["configuration"]:
        yield f"configuration {running['configuration'][:12]} instead of {recorded['configuration'][:12]}"
    if "dependencies" in recorded and "dependencies" in running:
        before, now = recorded["dependencies"], running["dependencies"]
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"{name} {now.get(name, 'absent')} instead of {before.get(name, 'absent')}"


def some(names: tuple[str, ...]) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"


SAID_AGAIN_EVERY = 32
_ENTRY_BYTES_MAX = 9  # A packed partition without its vector.
_HEAD_BYTES_MAX = 4  # A packed bookmark without its partitions.


class _Said(Struct):
    """The provenance that saves on one branch have carried."""

    saves: int = 0
    seen: dict[int, VersionVector] = field(default_factory=dict)


class Provenance:
    """The provenance of one handle. It is mutable: it remembers what earlier saves carried."""

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
        """The request with its provenance."""
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
        """Remember that a signed request was answered, so that the next one carries only changes."""
        if not self.name and not self.setting:
            return
        self._partition = saved.partition
        said = self._said.setdefault(request.branch, _Said())
        if said.saves % SAID_AGAIN_EVERY == 0:
            said.seen = {}
        said.saves += 1
        said.seen.update(Bookmark.unpack(request.seen))

    def _news(self, told: Mapping[int, VersionVector]) -> bytes:
        room = SEEN_BYTES_MAX - _HEAD_BYTES_MAX
        news = Bookmark()
        for partition, vector in self._connection.session.bookmark:
            if partition == self._partition or told.get(partition) == vector:
                continue
            room -= len(vector.pack()) + _ENTRY_BYTES_MAX
            if room < 0:
                break
            news.note(partition, vector)
        return news.pack() if len(news) else b""
