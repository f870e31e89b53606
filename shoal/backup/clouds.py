"""Buckets of clouds, and directories, through obstore: `s3://`, `gs://`, `az://` and `file://`.

Laws:
- obstore repeats requests by itself; nothing here repeats them again. Each call has a bound of time.
- An error says what the cloud said, never a credential. Credentials come from the environment, as obstore reads them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, MemoryStore, from_url

from shoal.backup.bucket import Listed
from shoal.errors import BackupUnreachable, InvalidInput
from shoal.raising import UNHARMED

CALL_S = 120.0  # One call, with the requests that obstore repeats.
RETRIES_MAX = 4
RETRY_S = 30.0
_SAID_CHARS_MAX = 400
SCHEMES = ("file", "s3", "gs", "az")

T = TypeVar("T")


class CloudStore:
    """An `ObjectStore` of obstore."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self.url = url

    async def put_new(self, name: str, content: bytes, /) -> bool:
        """Make an object (`ObjectStore.put_new`)."""
        try:
            await self._call(f"write {name}", obstore.put_async(self._store, name, content, mode="create", use_multipart=False))
        except AlreadyExistsError:
            return False
        return True

    async def replace(self, name: str, content: bytes, /) -> None:
        """Make or replace an object (`ObjectStore.replace`)."""
        await self._call(f"write {name}", obstore.put_async(self._store, name, content, mode="overwrite", use_multipart=False))

    async def get(self, name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        """The bytes of an object (`ObjectStore.get`)."""
        try:
            if stop is not None:
                ranged = obstore.get_range_async(self._store, name, start=start, end=stop)
                return bytes(await self._call(f"read {name}", ranged, may_lack=True))
            found = await self._call(f"read {name}", obstore.get_async(self._store, name), may_lack=True)
            return bytes(await self._call(f"read {name}", found.bytes_async(), may_lack=True))
        except (NotFoundError, FileNotFoundError):
            return None

    async def listed(self, prefix: str, after: str = "", /) -> AsyncIterator[Listed]:
        """The objects under a prefix (`ObjectStore.listed`)."""
        found: list[Listed] = []
        stream = obstore.list(self._store, prefix, offset=after or None, chunk_size=1000)
        while (page := await self._call(f"list {prefix}", anext(stream, None))) is not None:
            found += [Listed(each["path"], each["size"], int(each["last_modified"].timestamp() * 1000)) for each in page]
        for each in sorted(found):  # Directories are listed in no order.
            yield each

    async def delete(self, names: Sequence[str], /) -> None:
        """Delete objects (`ObjectStore.delete`)."""
        for name in names:  # A batch that lacks one of its names may fail as a whole.
            try:
                await self._call(f"delete {name}", obstore.delete_async(self._store, name), may_lack=True)
            except (NotFoundError, FileNotFoundError):
                continue

    async def _call(self, what: str, call: Awaitable[T], *, may_lack: bool = False) -> T:
        """
        Raises:
            BackupUnreachable: it failed, or took too long.
            AlreadyExistsError: there is such an object.
            NotFoundError, FileNotFoundError: there is none, with `may_lack`.
        """
        try:
            async with asyncio.timeout(CALL_S):
                return await call
        except AlreadyExistsError:
            raise
        except (BaseError, OSError, TimeoutError) as error:
            if may_lack and isinstance(error, NotFoundError | FileNotFoundError):
                raise
            raise BackupUnreachable(
                f"the backup at {self.url} cannot {what}: {_said(error)}. {UNHARMED} {_advice(error)}"
            ) from None


class DirectoryStore(CloudStore):
    """A directory. An object is on the disk before it counts as made: obstore alone leaves that to the system.

    One that is missing is empty, and is made for its first object: whoever reads at a wrong address leaves nothing there.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(LocalStore(root) if root.is_dir() else None, url)
        self._root = root

    async def get(self, name: str, start: int = 0, stop: int | None = None, /) -> bytes | None:
        """The bytes of an object (`ObjectStore.get`)."""
        return await super().get(name, start, stop) if self._is_there() else None

    async def listed(self, prefix: str, after: str = "", /) -> AsyncIterator[Listed]:
        """The objects under a prefix (`ObjectStore.listed`)."""
        if self._is_there():
            async for found in super().listed(prefix, after):
                yield found

    async def delete(self, names: Sequence[str], /) -> None:
        """Delete objects (`ObjectStore.delete`)."""
        if self._is_there():
            await super().delete(names)

    def _is_there(self) -> bool:
        if self._store is None and self._root.is_dir():
            self._store = LocalStore(self._root)
        return self._store is not None

    def _make(self) -> None:
        if not self._is_there():
            try:
                self._root.mkdir(parents=True, exist_ok=True)
                self._store = LocalStore(self._root)
            except (OSError, BaseError) as error:
                raise _unusable(self.url, error) from None

    async def put_new(self, name: str, content: bytes, /) -> bool:
        """Make an object (`ObjectStore.put_new`)."""
        self._make()
        made = await super().put_new(name, content)
        await self._call(f"write {name}", asyncio.to_thread(self._sync, name))
        return made

    async def replace(self, name: str, content: bytes, /) -> None:
        """Make or replace an object (`ObjectStore.replace`)."""
        self._make()
        await super().replace(name, content)
        await self._call(f"write {name}", asyncio.to_thread(self._sync, name))

    def _sync(self, name: str) -> None:
        path = self._root / name
        for each in (path, path.parent, self._root):
            descriptor = os.open(each, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def opened(url: str) -> CloudStore:
    """The store at this address. Nothing is asked of it yet.

    Raises:
        InvalidInput: it is no such address.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in SCHEMES or "\0" in unquote(url) or (parts.scheme != "file" and not parts.netloc):
        raise InvalidInput(
            f"{url!r} is no place for a backup. Nothing was written. Give one of: file:///DIR, s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX, az://CONTAINER/PREFIX."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput(
            f"the address of a backup has a bucket and a prefix, nothing else: {parts.scheme}://{parts.hostname}{parts.path}. "
            "Nothing was written. Give credentials in the environment (AWS_ACCESS_KEY_ID, …): docs/BACKUP.md."
        )
    if any(step in ("..", ".") for step in unquote(parts.path).split("/")):
        raise InvalidInput(f"the path in {url!r} leads outside ('..' or '.'). Nothing was written. Give the path itself.")
    if parts.scheme == "file":
        return _directory(url, parts.netloc, unquote(parts.path))
    try:
        store = from_url(url.rstrip("/"), **_options(parts.scheme))
    except (BaseError, ValueError) as error:
        raise InvalidInput(
            f"{url!r} cannot be used for a backup: {_said(error)}. Nothing was written. See docs/BACKUP.md."
        ) from None
    return CloudStore(store, url)


def in_memory() -> CloudStore:
    """A store in this process's memory, for tests."""
    return CloudStore(MemoryStore(), "memory://")


def _directory(url: str, host: str, path: str) -> CloudStore:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise InvalidInput(
            f"{url!r} is no directory of this machine. Nothing was written. Give its whole path: file:///mnt/backup."
        )
    try:
        nearest = next(each for each in (Path(path), *Path(path).parents) if each.exists())
        os.scandir(nearest).close()  # It is a directory, and can be read.
        return DirectoryStore(Path(path), url)
    except (OSError, BaseError) as error:
        raise _unusable(url, error) from None


def _unusable(url: str, error: Exception) -> BackupUnreachable:
    return BackupUnreachable(
        f"the directory of {url} cannot be used: {_said(error)}. Nothing was written. Make it, so that this user may write."
    )


def _options(scheme: str) -> dict[str, Any]:
    client: dict[str, Any] = {"timeout": timedelta(seconds=RETRY_S), "connect_timeout": timedelta(seconds=10)}
    if scheme == "s3" and _is_plain_http():
        client["allow_http"] = True
    retry = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_S)}
    return {"client_options": client, "retry_config": retry}


def _is_plain_http() -> bool:
    """Whether the environment names an endpoint without TLS, as a server beside the node has it."""
    return any(
        os.environ.get(name, "").startswith("http://") for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    )


def _said(error: BaseException) -> str:
    """The first line of an error, without what is for programmers, and durations: the same refusal has the same text."""
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_S:g} s"
    text = " ".join((str(error) or type(error).__name__).partition("Debug source:")[0].split())
    text = _NOISE.sub("", text)
    if (code := _CODE.search(text)) is not None:  # Of the XML that clouds answer with, what a person reads.
        told = _MESSAGE.search(text)
        before = _XML.split(text)[0].rstrip(" :")
        text = f"{before}: {code[1]}{f': {told[1]}' if told else ''}"
    return text[:_SAID_CHARS_MAX].rstrip(". ")


_NOISE = re.compile(r"^Generic \w+ error: |Error performing list request: | in [\d.]+(ns|µs|ms|s)(?= - |, after )")
_XML, _CODE, _MESSAGE = (
    re.compile(r"<\?xml|<Error|<Code>"),
    re.compile(r"<Code>([^<]*)</Code>"),
    re.compile(r"<Message>([^<]*)</Message>"),
)


_ADVICE = {
    "PermissionDeniedError": "Give the node's credentials the right to read, list, write and delete there.",
    "UnauthenticatedError": "Check the credentials in the node's environment; they may have expired.",
    "FileNotFoundError": "Check the name of the bucket.",
}


# By a word of the answer: clouds say in many ways what is wrong.
_TOLD = {
    "169.254.169.254": "No credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (Azure: "
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY) in the environment of the node, which reads them when it "
    "starts, or give its machine a role.",
    "metadata.google.internal": "No credentials were found: set GOOGLE_APPLICATION_CREDENTIALS in the environment of the node, "
    "which reads it when it starts, or give its machine a service account.",
    "expired": "The credentials have expired: renew them in the environment, and start the node again, which reads them when "
    "it starts; those of a role renew themselves.",
    "accessdenied": "Give the node's credentials the right to read, list, write and delete there.",
    "invalidaccesskeyid": "The credentials in the node's environment are wrong: correct them, and start it again.",
    "signaturedoesnotmatch": "The credentials in the node's environment are wrong: correct them, and start it again.",
    "slowdown": "The store of the bucket is busy or away: try again later. A node that ships tries again by itself.",
    "serviceunavailable": "The store of the bucket is busy or away: try again later. A node that ships tries again by itself.",
    "redirect": "Check the region in the node's environment (AWS_REGION): the bucket is in another one.",
    "region": "Check the region in the node's environment (AWS_REGION): the bucket is in another one.",
    "quota": "The bucket has no room left: raise its quota, or keep moments for less time (shoal backup init URL --keep).",
    "insufficientstorage": "The bucket has no room left: raise its quota, or keep moments for less time "
    "(shoal backup init URL --keep).",
    "no space left": "The disk of the backup is full: free some space there. It is tried again.",
    "nosuchbucket": "Check the name of the bucket.",
}


def _advice(error: BaseException) -> str:
    text = str(error).lower().replace(" ", "") + str(error).lower()
    told = next((advice for word, advice in _TOLD.items() if word in text), "")
    return (
        told
        or _ADVICE.get(type(error).__name__)
        or "Check the address, the region, the credentials and the space there: docs/BACKUP.md."
    )
