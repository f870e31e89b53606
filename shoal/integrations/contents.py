"""Values of frameworks in Shoal, for all integrations: ids as parts of names, JSON as values, and large parts of values as
files of the thread that they belong to; and all of it back.

Laws:
- A part is a file before the write that refers to it is sent. It has no name: references keep it, and it goes once the last one
  is gone.
- In a space with rules of redaction no part becomes a file: the rules look into values, and not into files.
- A reference may be anybody's: what is read for one has at most `CONTENT_BYTES_MAX`.
- An id becomes text once, where a framework hands it over (`text_of`): text, an int and a UUID are ids, nothing else.
- Ids are arbitrary text, Shoal's names are not: characters that a name cannot hold, and `%`, are
  percent-encoded. Different ids have different names, and each name gives its id back.
- An id that is too long for a name is rejected where names are checked; it is never cut. Only keys are: see `key_of`.
- Names that begin with the tag of one id share a partition, so that one batch can write them.
- A value that is read is what `json.loads(json.dumps(…))` makes of what was written, whatever it holds.
- It is stored as a value, so that commands, watches and other agents can read it. Only JSON that is no
  legal value (it holds half of a surrogate pair, or nests deeper than a value can) is stored as its text.
- A record says which integration wrote it, and in which version of its form. A record of a newer version is refused.
"""

from __future__ import annotations

import json
import operator
import re
from asyncio import to_thread
from collections.abc import Iterable, Mapping
from hashlib import sha256
from numbers import Integral
from typing import Any
from uuid import UUID

from shoal import values
from shoal.client.connection import StoreConnection
from shoal.errors import Forbidden, InvalidName, InvalidValue, NotFound, SchemaTooNew, TooLarge
from shoal.kinds.file.handle import Source, ThreadFiles
from shoal.names import check_key
from shoal.protocol import requests
from shoal.values.registry import FileRef, mentioned

ILLEGAL = "%\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""The characters that no name can hold, and `%`, for a character class."""

_EMPTY = "%"
_WHOLE = {"": _EMPTY, ".": "%2e", "..": "%2e%2e"}
_ENCODED = re.compile("(?:%[0-9a-f]{2})+")


def text_of(id: object, what: str = "an id") -> str:
    """An id as text, so that 17 and "17" are one, and so are a UUID and its usual form. `what` it is of, for the error.

    Raises:
        InvalidName: it is no text, int or UUID. What None, True, 1.5 or b"17" stand for is not guessed; nothing was written.
    """
    if isinstance(id, str):
        return str.__str__(id)  # Of a member of an enumeration, its value.
    if isinstance(id, UUID):
        return str(id)
    if isinstance(id, Integral) and not isinstance(id, bool):
        return str(operator.index(id))  # NumPy's ints too, and not its booleans, which older versions take as indices.
    raise InvalidName(
        f"{what} must be text, an int or a UUID; got {id!r:.80} ({type(id).__name__}). Nothing was written. Pass it as text."
    )


def unsafe(more: str = "") -> re.Pattern[str]:
    """A pattern of the characters to escape: those that are illegal, and `more`."""
    return re.compile(f"[{ILLEGAL}{more}]")


def escaped(id: object, pattern: re.Pattern[str]) -> str:
    """An id with every character of `pattern` percent-encoded. Raises as `text_of`."""
    return pattern.sub(_percent, text_of(id))


def unescaped(name: str) -> str:
    """The id of `escaped`."""
    return _ENCODED.sub(_text, name)


def name_of(id: object, pattern: re.Pattern[str]) -> str:
    """`escaped`, for an id that is a whole name: none is empty, `.` or `..`."""
    text = text_of(id)
    return _WHOLE.get(text) or escaped(text, pattern)


def id_of(name: str) -> str:
    """The id of `name_of`."""
    return "" if name == _EMPTY else unescaped(name)


_IN_TAG = unsafe("{}./")


def tag(id: object) -> str:
    """The tag of names, `{id}`: the name of a partition, and a legal first label of items."""
    return f"{{{name_of(id, _IN_TAG)}}}"


def key_of(id: object) -> str:
    """The idempotency key of what has an id: the id, or its SHA-256 in hex if it is no legal key. Raises as `text_of`."""
    text = text_of(id)
    try:
        return check_key("key", text)
    except InvalidName:
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _percent(match: re.Match[str]) -> str:
    # A lone surrogate has no UTF-8 form; it is encoded and decoded as if it had one.
    return "".join(f"%{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _text(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")


def stored(given: object, where: str) -> Any:
    """JSON as a value to store. `where` is its place, for the error.

    Raises:
        InvalidValue: it is no JSON.
    """
    try:
        text = json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(
            f"{where} is no JSON: {error}. Nothing was written. Give it as dicts, lists, strings and numbers."
        ) from None
    plain = json.loads(text)
    if isinstance(plain, str):
        return text  # Because a string that is stored is the text of JSON.
    try:
        values.encode(plain)
    except InvalidValue:
        return text
    return plain


def shown(value: Any) -> Any:
    """The JSON of `stored`."""
    return json.loads(value) if isinstance(value, str) else value


def of_form(record: Any, name: str, newest: int) -> Mapping[str, Any] | None:
    """A record that the integration `name` wrote; None for anything else that stands beside such records.

    Raises:
        SchemaTooNew: its form is newer than `newest`.
    """
    if not isinstance(record, dict) or name not in record:
        return None
    form = record[name]
    if not isinstance(form, int) or form > newest:
        raise SchemaTooNew(
            f"a record has the form {form!r} of {name!r}, and this version of Shoal reads forms up to {newest}. "
            "Nothing was written. Update Shoal here.",
            readable_from=str(form),
        )
    return record


CONTENT_BYTES_MAX = 1024 * 1024 * 1024
_AT_ONCE_BYTES = 4 * 1024 * 1024  # Hashed on the loop; more would hold up who else is served by it.
_PREFIX = ".values/"  # Of the name that a part has until it is there.


class Contents:
    """The large parts of values in the threads of one space."""

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection, self._space = connection, space

    async def are_taken(self) -> bool:
        """Whether parts may be files in this space."""
        try:
            rules = await self._connection.read(requests.ReadRedaction(self._space))
        except Forbidden:
            return False  # There may be rules.
        return not (rules.credentials or rules.cards or rules.patterns or rules.hooks or rules.trouble)

    async def put(self, thread: str, content: bytes, *, name: str = "", type: str = "application/octet-stream") -> FileRef:
        """Keep a part, and return the reference for a value of this thread, which shows this name.

        Raises:
            TooLarge: it has more than `CONTENT_BYTES_MAX` bytes. Nothing was written.
        """
        if len(content) > CONTENT_BYTES_MAX:
            raise TooLarge(
                f"a value has at most {CONTENT_BYTES_MAX} bytes; this one has {len(content)}. Nothing was written. Store it as "
                "a file, with put_file and a reference to that (docs/FILES.md)."
            )
        hash = (await to_thread(sha256, content) if len(content) > _AT_ONCE_BYTES else sha256(content)).hexdigest()
        await self._put(thread, hash, content, type)
        return FileRef(hash, len(content), name, type)

    async def get(self, thread: str, ref: FileRef) -> bytes:
        """The part that a reference stands for.

        Raises:
            NotFound: the thread has it no more.
            InvalidValue: it has more than `CONTENT_BYTES_MAX` bytes.
            StoreCorrupt: its bytes are not those of its hash.
        """
        async with ThreadFiles(self._connection, self._space, thread).open_file(ref) as stream:
            if stream.size > CONTENT_BYTES_MAX:
                raise InvalidValue(f"a part of a value has {stream.size} bytes, and at most {CONTENT_BYTES_MAX} are read.")
            return await stream.read()

    async def copy(self, source: str, target: str, packed: Iterable[bytes], done: set[bytes]) -> None:
        """Have all parts to which packed values refer in another thread, too. `done`: those that are there."""
        for hash in {hash for value in packed for hash in mentioned(value)} - done:
            try:
                async with ThreadFiles(self._connection, self._space, source).open_file(FileRef(hash.hex(), 0, "")) as stream:
                    await self._put(target, hash.hex(), stream, "application/octet-stream")
            except NotFound:
                continue  # It only looks like a reference, or is gone: the write will say.
            done.add(hash)

    async def _put(self, thread: str, hash: str, source: Source, type: str) -> None:
        name = _PREFIX + hash
        await ThreadFiles(self._connection, self._space, thread).put_file(name, source, type=type)
        remove: requests.ObjectWrite[Any] = requests.RemoveFile(self._space, thread, name)
        await self._connection.write(remove, key=None, durability=None)
