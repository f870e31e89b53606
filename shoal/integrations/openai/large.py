"""Large texts of a conversation, such as images in base64: files of its thread.

Laws:
- In what is stored, a reference stands for a text, and a pair of a text and a reference for that text and its file in base64.
  No JSON holds either, so nothing that was given can be mistaken for them.
- What is read is the text that was given, to the last character.
- A text that was kept before is not sent again, as long as something refers to its file.
"""

from __future__ import annotations

import re
from asyncio import to_thread
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

from shoal.errors import InvalidValue, NotFound
from shoal.integrations.base import remember
from shoal.integrations.contents import Contents
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
