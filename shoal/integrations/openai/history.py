"""The history of one conversation, as the branches of a thread. Its large texts, such as images in base64, are files of the
thread.

Laws:
- A conversation is a thread, a branch of it a branch. The channel `items` has the items, `times` when each was
  added, `usage` the tokens of each turn, and `run_state` a run that waits for a person.
- New items are appended to the newest state, so that two writers lose nothing. Whatever else changes a
  branch names the checkpoint that it was decided on, and is rejected (`HeadMoved`) or decided anew if that has moved.
- A text of more than `LARGE_CHARACTERS` is a file of the thread.
- A deleted branch does not exist any more. Whoever still works on it goes on in `main`, unless its name is taken again. Earlier
  versions marked it, and kept its name.
- If two nodes that could not reach each other both added items, both additions are kept, and merged when it is read.
- In what is stored, a reference stands for a text, and a pair of a text and a reference for that text and its file in base64.
  No JSON holds either, so nothing that was given can be mistaken for them.
- What is read is the text that was given, to the last character.
- A text that was kept before is not sent again, as long as something refers to its file.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import to_thread
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

from shoal.client.connection import StoreConnection, contended
from shoal.client.store import Space
from shoal.errors import HeadMoved, InvalidValue, MergeConflict, NotFound
from shoal.integrations import contents
from shoal.integrations.base import remember
from shoal.integrations.contents import Contents
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import NO_HEAD
from shoal.raising import partly
from shoal.records import NamedTuple
from shoal.values.registry import FileRef

LARGE_CHARACTERS = 64 * 1024  # Of a text that becomes a file, if it has more.
KNOWN_MAX = 1024  # Texts of which one session knows that they are kept.
_AT_ONCE_CHARACTERS = 4 * 1024 * 1024  # Taken from base64 on the loop; more would hold up who else is served by it.
_URL = re.compile("data:([-a-z0-9.+]{1,100}/[-a-z0-9.+]{1,100});base64,", re.IGNORECASE | re.ASCII)
_KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"%PDF": "application/pdf"}

T = TypeVar("T")
_Kept = FileRef | tuple[str, FileRef]


class Large:
    """The large texts of one conversation."""

    def __init__(self, contents: Contents, thread: str) -> None:
        self._contents, self._thread = contents, thread
        self._known: OrderedDict[bytes, _Kept] = OrderedDict()

    async def written(self, value: T, write: Callable[[T], Awaitable[None]]) -> None:
        """Write a value with its large texts as files, as far as the space takes files. Raises what `write` raises."""
        kept = await self._all_kept(value)
        try:
            await write(_exchanged(value, kept))
        except NotFound:
            if not kept:
                raise
            self._known.clear()  # Nothing referred to one of them any more.
            await write(_exchanged(value, await self._all_kept(value)))

    async def read(self, value: Any) -> Any:
        """The value that was written.

        Raises:
            NotFound: the thread has a file of it no more.
            InvalidValue: a file holds no text.
        """
        texts: dict[Any, str] = {}
        for part in dict.fromkeys(part for part in _parts(value) if not isinstance(part, str)):
            prefix, ref = part if isinstance(part, tuple) else (None, part)
            content = await self._contents.get(self._thread, ref)
            try:
                texts[part] = content.decode() if prefix is None else prefix + b64encode(content).decode()
            except UnicodeDecodeError:
                raise InvalidValue(f"file {ref.sha256} stands for a text of the conversation, and holds none.") from None
        return _exchanged(value, texts)

    async def _all_kept(self, value: Any) -> dict[Any, _Kept]:
        large = dict.fromkeys(part for part in _parts(value) if isinstance(part, str) and len(part) > LARGE_CHARACTERS)
        if not large or not await self._contents.are_taken():
            return {}
        return {text: await self._kept(text) for text in large}

    async def _kept(self, text: str) -> _Kept:
        key = sha256(text.encode()).digest()
        found = self._known.get(key)
        if found is None:
            is_long = len(text) > _AT_ONCE_CHARACTERS
            prefix, kind, content = await to_thread(_content_of, text) if is_long else _content_of(text)
            ref = await self._contents.put(self._thread, content, type=kind)
            found = ref if prefix is None else (prefix, ref)
        remember(self._known, key, found, KNOWN_MAX)
        return found


def _content_of(text: str) -> tuple[str | None, str, bytes]:
    """The prefix, the media type and the content in base64 of a text; no prefix if it is another text."""
    url = _URL.match(text)
    prefix = url[0] if url else ""
    try:
        content = b64decode(text[len(prefix) :], validate=True)
        is_same = prefix + b64encode(content).decode() == text
    except (NoBase64, ValueError):
        is_same = False
    if not is_same:
        return None, "text/plain", text.encode()
    kind = next((kind for begins, kind in _KINDS.items() if content.startswith(begins)), "application/octet-stream")
    return prefix, url[1].lower() if url else kind, content


def _parts(value: Any) -> Iterator[Any]:
    """All texts, references and pairs of a value."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str | FileRef) or _is_pair(part):
            yield part
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def _is_pair(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str) and isinstance(part[1], FileRef)


def _exchanged(value: Any, parts: dict[Any, Any]) -> Any:
    """The value with other parts in the place of these."""
    if not parts:
        return value
    made: list[Any] = [value]
    waiting: list[tuple[Any, Any]] = [
        (made, 0)
    ]  # A container that was made, and the place in it whose part is to be looked at.
    while waiting:
        within, place = waiting.pop()
        part = within[place]
        if isinstance(part, str | FileRef) or _is_pair(part):
            within[place] = parts.get(part, part)
        elif isinstance(part, dict):
            within[place] = dict(part)
            waiting += [(within[place], name) for name in part]
        elif isinstance(part, list):
            within[place] = list(part)
            waiting += [(within[place], nth) for nth in range(len(part))]
    return made[0]


FORM = 1
"""The version of the form in which conversations are stored."""
NAME = "openai"
MAIN = "main"
READS_MAX = 3  # Of a conversation whose files go while it is read.
_DELETED = "deleted"
_UNSAFE = contents.unsafe()


class Branch(NamedTuple):
    """A branch as it was read."""

    id: str
    head: str  # The checkpoint, or NO_HEAD if the branch does not exist yet.
    items: Sequence[Any] = ()
    times: Sequence[str | None] = ()
    usage: Mapping[str, Any] = MappingProxyType({})
    run_state: Any = None
    deleted: bool = False
    created: str | None = None  # When its first item was added.

    @property
    def channels(self) -> dict[str, Any]:
        """Its channels, to save it changed."""
        return channels(self.items, self.times, self.usage, self.run_state)


def name_of(id: str) -> str:
    """The name of the thread of a session, or of a branch."""
    return contents.name_of(id, _UNSAFE)


def channels(
    items: Sequence[Any], times: Sequence[str | None], usage: Mapping[str, Any], run_state: Any = None
) -> dict[str, Any]:
    """The channels of a branch."""
    state = {"items": [contents.stored(item, f"items[{nth}]") for nth, item in enumerate(items)], "times": list(times)}
    return state | ({"usage": dict(usage)} if usage else {}) | ({} if run_state is None else {"run_state": run_state})


def now() -> str:
    """The time for items that are added, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class History:
    """Reads and writes the branches of one conversation. All of it runs on the store's loop."""

    def __init__(self, space: Space, connection: StoreConnection, session_id: str) -> None:
        self._space = space
        self._connection = connection
        self.thread_name = space.thread(name_of(session_id)).name
        self._large = Large(Contents(connection, space.name), self.thread_name)
        self._is_checked = False  # Whether the newest state was seen in a form that this version writes.

    @property
    def thread(self) -> Thread:
        """A handle without a position, so that nothing but `expect_head` decides what a write builds on."""
        return self._space.thread(self.thread_name)

    async def read(self, id: str = MAIN, *, bare: bool = False) -> Branch:
        """A branch; an empty one without a head if it does not exist. `bare`: with references where large texts are files.

        Raises:
            SchemaTooNew: a newer version of Shoal wrote it.
            MergeConflict: two nodes that could not reach each other did more than add items, such as remove some.
        """
        for _ in range(READS_MAX - 1):
            with suppress(NotFound):  # It was changed while it was read, and its files went.
                return await self._read(id, bare=bare)
        return await self._read(id, bare=bare)

    async def _read(self, id: str, *, bare: bool) -> Branch:
        name = name_of(id)
        thread = self.thread
        try:
            found = await thread.load(branch=name)
        except NotFound:
            return Branch(id, NO_HEAD)
        self._check(found)
        if found.forked:
            found = await thread.merge(resolver=_resolved, branch=name, metadata=found.metadata)
        self._is_checked = True
        state = found.state
        times = state.get("times", [])
        items, run_state = state.get("items", []), state.get("run_state")
        if not bare:
            items, run_state = await self._large.read([items, run_state])
        return Branch(
            id,
            found.id,
            [contents.shown(item) for item in items],
            times,
            state.get("usage", {}),
            run_state,
            deleted=bool(found.metadata.get(_DELETED)),
            created=times[0] if times else None,
        )

    async def add(self, items: list[Any], id: str = MAIN) -> str:
        """Append items to the branch, whatever its newest state is; to `main` if the branch was deleted. Return which it was.

        Raises:
            InvalidValue: an item is no JSON; nothing was written.
        """
        added = [contents.stored(item, f"items[{nth}]") for nth, item in enumerate(items)]
        times: list[str | None] = [now()] * len(added)

        async def append(stored: list[Any]) -> None:
            await self.thread.update(append={"items": stored, "times": times}, metadata=_metadata())

        if id == MAIN:
            if not self._is_checked:
                await self._check_newest()
            await self._large.written(added, append)
            return id

        async def append_where_it_is() -> str:
            branch = await self.living(id)
            if branch.id == MAIN:
                await self._large.written(added, append)
            else:  # It may be deleted meanwhile.
                await self.extend(branch, added, times, run_state=branch.run_state)
            return branch.id

        return await self.retried(append_where_it_is)

    async def living(self, id: str) -> Branch:
        """A branch, or `main` if it was deleted."""
        branch = await self.read(id)
        return await self.read() if id != MAIN and (branch.deleted or branch.head == NO_HEAD) else branch

    async def rewrite(self, branch: Branch, state: Mapping[str, Any], *, label: str = "") -> None:
        """Replace a branch, if it is as it was read.

        Raises:
            HeadMoved: it is not; nothing was written.
        """

        async def save(stored: dict[str, Any]) -> None:
            await self.thread.save(
                stored, branch=name_of(branch.id), expect_head=branch.head, metadata=_metadata(), label=label
            )

        await self._large.written(dict(state), save)

    async def extend(
        self, branch: Branch, stored: list[Any], times: list[str | None], *, run_state: Any, label: str = ""
    ) -> None:
        """Append stored items to a branch and set or remove the run that waits, if the branch is as it was read.

        Raises:
            HeadMoved: it is not; nothing was written.
        """

        async def update(parts: list[Any]) -> None:
            items, run = parts
            await self.thread.update(
                {} if run is None else {"run_state": run},
                append={"items": items, "times": times},
                remove=["run_state"] if run is None and branch.run_state is not None else [],
                branch=name_of(branch.id),
                expect_head=branch.head,
                metadata=_metadata(),
                label=label,
            )

        await self._large.written([stored, run_state], update)

    async def delete(self, id: str) -> None:
        """Delete a branch. Items that a node adds to it without knowledge of that stay, and with them the branch."""
        await self.thread.delete_branch(name_of(id))

    async def change(self, id: str, fn: Callable[[Branch], Mapping[str, Any] | None]) -> Branch:
        """Save what `fn` makes of a branch, on exactly that; again if somebody was faster. If it makes None, nothing is saved.

        Returns the branch that `fn` was given last.
        """

        async def changed() -> Branch:
            branch = await self.living(id)
            state = fn(branch)
            if state is not None:
                await self.rewrite(branch, state)
            return branch

        return await self.retried(changed)

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call it again as long as somebody else was faster.

        Raises:
            HeadMoved: somebody was, `SAVE_ATTEMPTS_MAX` times.
        """
        pauses = contended(self._connection)
        while True:
            try:
                return await call()
            except HeadMoved:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def branches(self) -> list[Branch]:
        """All branches that are not deleted, those that are older first; with references where large texts are files."""
        found = [await self.read(contents.id_of(name), bare=True) for name in await self._names()]
        return sorted((each for each in found if not each.deleted), key=lambda each: (each.created or "~", each.id != MAIN))

    async def clear(self) -> None:
        """Empty `main` and delete all other branches, as one write, and free what only they had.

        Raises:
            OutcomeUnknown: more branches than one batch can hold were not deleted at once, and the rest failed. Clear again.
        """
        await self.retried(self._cleared)
        with partly(True, "the conversation is empty", "Its old items are freed when it is cleared again."):
            try:
                await self.thread.prune(keep_last=1)
            except NotFound:
                return

    async def _cleared(self) -> None:
        main = await self.read()
        names = [name for name in await self._names() if name != MAIN or main.head != NO_HEAD]
        names.sort(key=lambda name: name != MAIN)
        most = self._connection.config.batch_writes_max
        for start in range(0, len(names), most):
            with partly(start, f"{start} branches are cleared", "Clear the session again."):
                async with self._space.batch() as batch:
                    thread = batch.thread(self.thread_name)
                    for name in names[start : start + most]:
                        if name == MAIN:
                            thread.save(channels([], [], {}), branch=MAIN, expect_head=main.head, metadata=_metadata())
                        else:
                            thread.delete_branch(name)

    async def _names(self) -> list[str]:
        """The names of all branches as they are stored."""
        try:
            return list(await self.thread.heads())
        except NotFound:
            return []

    async def labelled(self, label: str) -> bool:
        """Whether a checkpoint has this label."""
        try:
            await self.thread.load(label=label, channels=[])
        except NotFound:
            return False
        return True

    async def _check_newest(self) -> None:
        try:
            self._check(await self.thread.load(channels=[]))
        except NotFound:
            return
        self._is_checked = True

    def _check(self, found: Checkpoint) -> None:
        contents.of_form(found.metadata, NAME, FORM)


def _metadata() -> dict[str, Any]:
    return {NAME: FORM}


def _resolved(channel: str, base: Any, sides: Sequence[Any]) -> Any:
    """Join the tokens of the turns; items and runs that differ are for a person."""
    if channel == "usage":
        return {turn: used for side in sides for turn, used in (side or {}).items()}
    raise MergeConflict(
        f"two nodes that could not reach each other changed {channel!r} of the conversation differently. Nothing was written. "
        "Look at both with thread.sides(), and decide with thread.merge(resolver=…)."
    )
