"""Checkpoints as handles show them, states as requests carry them, and the provenance of saves.

The checkpoints of one thread: reading them, and saving on one of them.

Laws:
- Reading does not change a position. A page is one request, and the next page is requested when it is needed.
- A save names its parent. A handle of the client, which remembers the checkpoint that it builds on, is a
  subclass whose `newest`, `load` and `save` also change its position.

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

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from shoal import values
from shoal.crdt.dot import VersionVector
from shoal.errors import DriftRefused, InvalidInput, InvalidValue, NotFound, Pruned
from shoal.names import check_names
from shoal.protocol import requests
from shoal.protocol.bookmark import SEEN_BYTES_MAX, Bookmark
from shoal.protocol.requests import NO_HEAD, Durability, Save, Saved
from shoal.schemas.secret_fields import redacted
from shoal.workflows.connection import Connection, moment


class Checkpoint(Struct, frozen=True):
    """An immutable snapshot of a thread's channels."""

    id: str
    parents: tuple[str, ...]
    branch: str
    heads: tuple[str, ...]  # The branch's heads when this was answered, the winner first.
    wall_ms: int
    schema: str
    schema_version: int
    _metadata: bytes
    _channels: Mapping[str, bytes] | None
    author: str = ""
    label: str = ""
    hashes: Mapping[str, str] = {}  # Per channel; empty in the answer to a save.
    _setting: bytes = b""
    _seen: bytes = b""
    readable_from: int = 0  # The oldest version of its schema whose readers understand it; 0: only its own.
    secret: tuple[str, ...] = ()  # JSON pointers to values that must not be shown.

    def __repr__(self) -> str:
        return f"Checkpoint({self.id!r}, branch={self.branch!r}, time={self.time.isoformat()!r})"

    @property
    def time(self) -> datetime:
        """When it was saved, by the clock of the node that saved it."""
        return moment(self.wall_ms)

    @property
    def forked(self) -> bool:
        """Whether the branch had more than one head."""
        return len(self.heads) > 1

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata given to the save, decoded anew at each access."""
        return dict(values.decode(self._metadata))

    @property
    def setting(self) -> dict[str, Any]:
        """The configuration and dependencies of its author, if they changed; `Thread.why` has them
        for every checkpoint.
        """
        return dict(values.decode(self._setting)) if self._setting else {}

    @property
    def seen(self) -> str:
        """The bookmark of what its author had read elsewhere since the previous save, for `Store.observe`."""
        return Bookmark.unpack(self._seen).text()

    @property
    def state(self) -> dict[str, Any]:
        """Channel name → value. Decoded again at each access, so you can change it freely.

        Raises:
            InvalidInput: the checkpoint came from a history without states, or was saved as a change.
            InvalidValue: a value's type is not registered here.
        """
        if self._channels is None:
            raise InvalidInput(f"checkpoint {self.id} came without its state. Get it with load({self.id!r}).")
        return {name: values.decode_channel(packed, self.schema) for name, packed in self._channels.items()}

    @property
    def redacted(self) -> dict[str, Any]:
        """The state for display, with «secret» in place of its secret fields."""
        return redacted(self.state, self.secret)


def encode_channels(state: Mapping[str, Any]) -> dict[str, bytes]:
    """Channel → packed value."""
    if type(state) is not dict and not isinstance(state, Mapping):  # isinstance of the abstract class is slow.
        raise InvalidValue(f"a state is a mapping of channel names to values, not {type(state).__name__}. Nothing was written.")
    check_names("channel", state)
    return {name: values.encode(value, where="state", key=name) for name, value in state.items()}


def encode_appended(append: Mapping[str, Iterable[Any]]) -> dict[str, bytes]:
    """Channel → a packed list of the elements to add at its end."""
    check_names("channel", append)
    for name, elements in append.items():
        if isinstance(elements, str | bytes | Mapping) or not isinstance(elements, Iterable):
            raise InvalidInput(
                f"append[{name!r}] is a list of elements, not {type(elements).__name__}. Nothing was written. "
                "For one element use thread.append."
            )
    return {name: values.encode(list(elements), where="append", key=name) for name, elements in append.items()}


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes:
    """The packed metadata; None is an empty map.

    Raises:
        InvalidValue: it is not a mapping, or cannot be serialised.
    """
    if metadata is None:
        return b"\x80"
    if not isinstance(metadata, Mapping):
        raise InvalidValue(f"metadata is a mapping of names to values, not {type(metadata).__name__}. Nothing was written.")
    return values.encode(dict(metadata), where="metadata")


def is_id(place: str) -> bool:
    """Whether `place` is the id of a checkpoint rather than the name of a branch."""
    return len(place) == 64 and not place.strip("0123456789abcdef")


def saved_checkpoint(saved: requests.Saved, request: requests.Save) -> Checkpoint:
    """The checkpoint of a save's reply; with its state, unless it was saved as a change."""
    return Checkpoint(
        saved.id,
        tuple(saved.parents),
        saved.branch,
        tuple(saved.heads),
        saved.wall_ms,
        request.schema,
        request.schema_version,
        request.metadata,
        None if request.delta else request.channels,
        request.author,
        request.label,
        {},
        request.setting,
        request.seen,
        request.readable_from,
        tuple(saved.secret or request.secret),
    )


def shown_checkpoint(found: requests.Checkpoint, *, channels: bool) -> Checkpoint:
    """A checkpoint as handles show it; with its state if `channels`."""
    return Checkpoint(
        found.id,
        tuple(found.parents),
        found.branch,
        tuple(found.heads),
        found.wall_ms,
        found.schema,
        found.schema_version,
        found.metadata,
        found.channels if channels else None,
        found.author,
        found.label,
        found.hashes,
        found.setting,
        found.seen,
        found.readable_from,
        tuple(found.secret),
    )


PAGE = 100
"""Checkpoints in one request."""


class ThreadCheckpoints:
    """The checkpoints of one thread, over one connection."""

    def __init__(self, connection: Connection, space: str, thread: str, provenance: Provenance | None = None) -> None:
        self.connection = connection
        self.space, self.thread = space, thread
        self.provenance = Provenance(connection, "") if provenance is None else provenance

    # ── overridden by a handle with a position ────────────────────────────────

    async def newest(self, branch: str) -> str:
        """The checkpoint that a change of the branch is based on: its winner, or NO_HEAD."""
        return await self.winner(branch)

    async def load(self, id: str | None = None, *, branch: str = "main") -> Checkpoint:
        """Read a checkpoint with its state, by its id or as the winner of a branch.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        return shown_checkpoint(await self.read(id, branch=branch), channels=True)

    async def save(self, request: requests.Save, key: str | None, durability: Durability | None) -> Checkpoint:
        """Save on the request's parent, with the handle's author and provenance."""
        signed = self.provenance.signed(request)
        saved = await self.commit(signed, key, durability)
        self.provenance.noted(signed, saved)
        return saved_checkpoint(saved, signed)

    async def commit(self, request: requests.Save, key: str | None, durability: Durability | None) -> requests.Saved:
        """Send a save as it is, without adding an author."""
        return await self.connection.write(request, key=key, durability=durability)

    def shown(self, found: requests.Checkpoint) -> requests.Checkpoint:
        """A checkpoint with its state, migrated to the version of the schema that the handle declares, if it declares one."""
        return found

    # ── reading ───────────────────────────────────────────────────────────────

    async def heads(self, *, stale: bool = False) -> dict[str, list[str]]:
        """Branch name → ids of its heads, the winner first."""
        found = await self.connection.read(requests.Heads(self.space, self.thread), stale=stale)
        return found.branches

    async def winner(self, branch: str) -> str:
        """The branch's first head; NO_HEAD if it has none."""
        heads = (await self.heads()).get(branch)
        return heads[0] if heads else NO_HEAD

    async def read(
        self, id: str | None, channels: list[str] | None = None, *, branch: str = "main", stale: bool = False
    ) -> requests.Checkpoint:
        """A checkpoint as it was saved, by its id or as the winner of a branch, with all its channels or the given ones.

        Raises:
            NotFound: there is none, or it has no such channel.
        """
        return await self.connection.read(requests.Load(self.space, self.thread, id, branch, channels), stale=stale)

    async def states(self, id: str, channels: list[str], *, stale: bool = False) -> dict[str, Any]:
        """Channels of a checkpoint, decoded. Without channels it makes no request."""
        return decoded(await self.read(id, channels, stale=stale)) if channels else {}

    def state_of(self, found: requests.Checkpoint) -> dict[str, Any]:
        """The decoded state of a checkpoint that was read with all its channels; see `shown`."""
        return decoded(self.shown(found))

    async def pages(
        self,
        *,
        branch: str = "main",
        before: str | None = None,
        limit: int | None = None,
        states: bool = False,
        filter: Mapping[str, bytes] | None = None,
        author: str | None = None,
        stale: bool = False,
    ) -> AsyncIterator[requests.Checkpoint]:
        """Checkpoints backwards along first parents, from the branch's winner or from the parent of `before`."""
        wanted = dict(filter or {})
        while limit is None or limit > 0:
            asked = PAGE if limit is None else min(limit, PAGE)
            request = requests.History(self.space, self.thread, branch, before, asked, states, wanted, author)
            page = await self.connection.read(request, stale=stale)
            for found in page.items:
                yield found
            if not page.more:
                return
            before = page.next or page.items[-1].id
            limit = None if limit is None else limit - len(page.items)

    async def first_parents(self, head: str) -> AsyncIterator[requests.Checkpoint]:
        """A checkpoint and those before it along first parents, newest first, without channels."""
        if head != NO_HEAD:
            yield await self.read(head, [])
            async for found in self.pages(before=head):
                yield found

    async def labels(self, prefix: str = "", *, reverse: bool = False, stale: bool = False) -> AsyncIterator[tuple[str, str]]:
        """Labels in byte order, each with the id of its checkpoint."""
        after: str | None = None
        while True:
            request = requests.ReadLabels(self.space, self.thread, prefix=prefix, after=after, reverse=reverse)
            page = await self.connection.read(request, stale=stale)
            for found in page.items:
                yield found.label, found.checkpoint.id
            if not page.more:
                return
            after = page.items[-1].label

    async def reachable(
        self, starts: list[str] | None = None, *, states: bool = False, line_max: int | None = None
    ) -> AsyncIterator[Checkpoint]:
        """These checkpoints and all their ancestors, each once. Along first parents a child comes before its parent.

        The default for `starts` is all heads and labelled checkpoints. Pruned checkpoints are left out, and given ones
        that do not exist. `line_max` bounds how many of each line of first parents are read, from the newest.
        """
        absent = Pruned if starts is None else NotFound
        if starts is None:
            starts = [head for heads in (await self.heads()).values() for head in heads]
            starts += [id async for _, id in self.labels()]
        waiting, seen = list(starts), set[str]()
        while waiting:
            start = waiting.pop()
            if start in seen:
                continue
            try:
                found = await self.read(start, None if states else [])
            except absent:
                continue
            seen.add(start)
            waiting.extend(found.parents[1:])
            yield shown_checkpoint(found, channels=states)
            async for older in self.pages(before=start, states=states, limit=None if line_max is None else line_max - 1):
                if older.id in seen:
                    break
                seen.add(older.id)
                waiting.extend(older.parents[1:])
                yield shown_checkpoint(older, channels=states)


def decoded(found: requests.Checkpoint) -> dict[str, Any]:
    """The channels of a checkpoint, decoded."""
    return {name: values.decode_channel(packed, found.schema) for name, packed in found.channels.items()}


def first_children(parents: dict[bytes, tuple[bytes, ...]]) -> dict[bytes, int]:
    """How many checkpoints have each as their first parent."""
    found: dict[bytes, int] = {}
    for above in parents.values():
        if above:
            found[above[0]] = found.get(above[0], 0) + 1
    return found


def parents_first(parents: dict[bytes, tuple[bytes, ...]]) -> Iterator[bytes]:
    """All checkpoints, each after its parents; a line of first parents stays together."""
    done: set[bytes] = set()
    for start in reversed(parents):  # They were found children first.
        waiting = [start]
        while waiting:
            id = waiting[-1]
            lacking = [parent for parent in parents[id] if parent in parents and parent not in done]
            if id in done or not lacking:
                waiting.pop()
                if id not in done:
                    done.add(id)
                    yield id
            else:
                waiting.extend(lacking)


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
