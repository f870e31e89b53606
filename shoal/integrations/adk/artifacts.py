"""`ShoalArtifactService`: the files of an agent, with all their versions, on Shoal.

Laws:
- A version is two items, written at once: what it is, and its content. So listing versions reads no content.
- A version is written once, under the next number. Of two that save at once, one takes the number after.
- Bytes above `INLINE_BYTES_MAX` are a file of a thread of the artifact's own, named by their hash, so equal versions share one.
  The file is there before the version that needs it, and goes with the artifact. So content has any size that fits in memory,
  which is how the ADK hands it over; a text, which is no bytes, is bounded by `request_bytes_max` (16 MiB).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from typing import Any, cast

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.platform import time as platform_time
from google.genai import types

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import ItemChanged, NotFound
from shoal.integrations import contents as escaping
from shoal.integrations.adk.events import FORM, IN_PART, NAME, app_of, below, ids_of, user_of
from shoal.integrations.base import Bridge, checked_store, pieces, settled
from shoal.integrations.contents import escaped, tag, text_of
from shoal.kinds.items.handle.item import Item, Namespace, delete_request, put_request
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.records import NamedTuple

_OF_USER = "user:"
INLINE_BYTES_MAX = 256 * 1024  # Of content that stands in the item itself; or a quarter of a request, if that is less.
_DIGITS = 10  # Of a version in a key, so that keys are in the order of the versions.


class _File(NamedTuple):
    app: str
    user: str
    session: str | None  # None if the file is the user's, in all sessions.
    name: str

    @property
    def versions(self) -> Namespace:
        """The items that say what each version is."""
        return self._items("artifacts")

    @property
    def contents(self) -> Namespace:
        """The items with the content of each version."""
        return self._items("contents")

    @property
    def thread(self) -> str:
        """The thread with its large contents.

        Raises:
            InvalidName: the ids are too long together; nothing was written.
        """
        scope = ("user",) if self.session is None else ("session", escaped(self.session, IN_PART))
        parts = (tag(self.app), "artifacts", escaped(self.user, IN_PART), *scope, escaped(self.name, IN_PART))
        return check_name("thread", "/".join(parts))

    def uri(self, version: int) -> str:
        """The canonical URI of a version."""
        at = f"sessions/{self.session}/" if self.session is not None else ""
        return f"shoal://apps/{self.app}/users/{self.user}/{at}artifacts/{self.name}/versions/{version}"

    def _items(self, kind: str) -> Namespace:
        scope = ("user",) if self.session is None else ("session", self.session)
        return below(self.app, kind, self.user, *scope, self.name)


class ShoalArtifactService(BaseArtifactService):
    """Keeps artifacts in one space. Its methods work on any event loop."""

    def __init__(self, store: Store, *, space: str = "adk") -> None:
        """A service on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalServices.open`.
        """
        self._connection = checked_store(store, "ShoalServices").connection
        self._inline_max = min(INLINE_BYTES_MAX, self._connection.config.request_bytes_max // 4)
        self._space = store.space(space)
        self._bridge = Bridge()

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save the next version of an artifact, and return its number, from 0.

        Raises:
            InputValidationError: a name is not legal, or the artifact has no content; nothing was written.
            InvalidValue: `custom_metadata` is no JSON; nothing was written.
            TooLarge: a text is larger than a request may be; nothing was written.
        """
        file = _file(app_name, user_id, filename, session_id)
        part = ensure_part(artifact)
        kind = _mime_type(file, part)
        said = {"mime_type": kind, "custom_metadata": custom_metadata or {}, "create_time": platform_time.get_time()}
        what = {NAME: FORM, "version": escaping.stored(said, "custom_metadata")}
        content = _content_of(part)
        return await settled(self._bridge.awaited(lambda: self._save(file, what, content)))

    async def load_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> types.Part | None:
        """The content of a version, or of the latest; None if there is none.

        Raises:
            InputValidationError: a name is not legal, or a reference leads out of the user's scope, or too far.
            SchemaTooNew: a newer version of Shoal wrote it.
        """
        hops = artifact_util._MAX_ARTIFACT_REFERENCE_DEPTH
        while True:
            file = _file(app_name, user_id, filename, session_id)
            part = await self._bridge.awaited(partial(self._load, file, version))
            if part is None or part == types.Part() or artifact_util._is_rewind_tombstone(part):
                return None
            if not artifact_util.is_artifact_ref(part):
                return part
            to = artifact_util.resolve_artifact_reference(
                file_uri=part.file_data.file_uri,
                app_name=app_name,
                user_id=user_id,
                session_id=session_id,
                remaining_depth=hops,
            )
            filename, session_id, version, hops = to.filename, to.session_id, to.version, hops - 1

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """The names of the user's artifacts, and of the session's if one is given, in order."""
        app, user, session = _ids(app_name, user_id, session_id)
        scopes = [below(app, "artifacts", user, "user")]
        if session is not None:
            scopes.append(below(app, "artifacts", user, "session", session))
        return sorted(await self._bridge.awaited(lambda: self._names(scopes)))

    async def delete_artifact(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None) -> None:
        """Delete an artifact with all its versions; nothing if there is none."""
        file = _file(app_name, user_id, filename, session_id)
        await settled(self._bridge.awaited(lambda: self._delete(file)))

    async def list_versions(self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None) -> list[int]:
        """The numbers of all versions."""
        file = _file(app_name, user_id, filename, session_id)
        return [each.version for each in await self._bridge.awaited(lambda: self._versions(file))]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """The metadata of each version."""
        file = _file(app_name, user_id, filename, session_id)
        return await self._bridge.awaited(lambda: self._versions(file))

    async def get_artifact_version(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None, version: int | None = None
    ) -> ArtifactVersion | None:
        """The metadata of a version, or of the latest; None if there is none."""
        file = _file(app_name, user_id, filename, session_id)
        found = await self._bridge.awaited(lambda: self._versions(file))
        return next((each for each in reversed(found) if version in (None, each.version)), None)

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _save(self, file: _File, what: dict[str, Any], content: dict[str, Any]) -> int:
        data = content["data"]
        if data is None or len(data) <= self._inline_max:
            return await self._versioned(file, what, content)
        files, name = self._space.thread(file.thread), sha256(data).hexdigest()
        await files.put_file(name, data)
        version = await self._versioned(file, what, {**content, "data": None, "file": name})
        try:
            await files.file(name)
        except NotFound:  # The artifact was deleted between the two.
            await files.put_file(name, data)
        return version

    async def _versioned(self, file: _File, what: dict[str, Any], content: dict[str, Any]) -> int:
        pauses = contended(self._connection)
        while True:
            known = await self._versions(file)
            version = known[-1].version + 1 if known else 0
            puts: list[requests.BatchWrite] = [
                put_request(self._space.name, file.versions, _key(version), what, expect=NO_ITEM),
                put_request(self._space.name, file.contents, _key(version), content, expect=NO_ITEM),
            ]
            try:
                await self._connection.write(requests.Batch(puts), key=None, durability=None)
                return version
            except ItemChanged:
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    async def _load(self, file: _File, version: int | None) -> types.Part | None:
        if version is None:
            known = await self._versions(file)
            if not known:
                return None
            version = known[-1].version
        item = await self._space.items.get(file.contents, _key(version)) if version >= 0 else None
        record = None if item is None else escaping.of_form(item.value, NAME, FORM)
        if record is None:
            return None
        data = record["data"]
        if (name := record.get("file")) is not None:
            try:
                async with self._space.thread(file.thread).open_file(name) as stream:
                    data = await stream.read()
            except NotFound:  # The artifact was deleted meanwhile.
                return None
        return _part_of(record, data)

    async def _versions(self, file: _File) -> list[ArtifactVersion]:
        found = [_version_of(file, item) async for item in self._space.items.scan(file.versions)]
        return [each for each in found if each is not None]

    async def _names(self, scopes: Iterable[Namespace]) -> set[str]:
        found = set()
        for scope in scopes:
            async for item in self._space.items.scan(scope):
                found.add(ids_of(item.namespace)[-1])
        return found

    async def _delete(self, file: _File) -> None:
        deletes = [
            delete_request(self._space.name, namespace, _key(version.version))
            for version in await self._versions(file)
            for namespace in (file.contents, file.versions)
        ]
        for piece in pieces(deletes, lambda each: len(each.key), self._connection.config):
            await self._connection.write(requests.Batch([*piece]), key=None, durability=None)
        large = self._space.thread(file.thread)
        if [each async for each in large.files()]:
            await large.delete()


def _file(app: str, user: str, name: str, session: str | None) -> _File:
    """Raises:
    InputValidationError: a name is not legal, or the session of an artifact that is not the user's is missing.
    """
    of_user = name.startswith(_OF_USER)
    app, user, session = _ids(app, user, None if of_user else session)
    if not name or "\0" in name:
        raise InputValidationError("The filename must not be empty, nor contain null bytes. Nothing was written.")
    if of_user:
        return _File(app, user, None, name)
    if session is None:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts. Nothing was written.")
    return _File(app, user, session, name)


def _ids(app: object, user: object, session: object) -> tuple[str, str, str | None]:
    """The ids as text. Raises as `text_of`, and:

    Raises:
        InputValidationError: one cannot be a part of a path.
    """
    named = app_of(app), user_of(user), None if session is None else text_of(session, "the id of a session")
    for id, what in zip(named, ("app_name", "user_id", "session_id"), strict=True):
        if id is not None:
            artifact_util.validate_path_segment(id, what)
    return named


def _mime_type(file: _File, part: types.Part) -> str | None:
    """The type of a part's content.

    Raises:
        InputValidationError: it has none that an artifact can have, or refers to an artifact out of its scope.
    """
    if part.inline_data is not None:
        return cast("str | None", part.inline_data.mime_type)
    if part.text is not None:
        return "text/plain"
    if part.file_data is None:
        raise InputValidationError("Not supported artifact type. Nothing was written.")
    if not artifact_util.is_artifact_ref(part):
        return cast("str | None", part.file_data.mime_type)
    to = artifact_util.parse_artifact_uri(part.file_data.file_uri)
    if not to:
        raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}. Nothing was written.")
    artifact_util.validate_artifact_reference_scope(
        app_name=file.app, user_id=file.user, session_id=file.session, parsed_uri=to
    )
    return None


def _content_of(part: types.Part) -> dict[str, Any]:
    """The record of a content. Bytes are stored as they are."""
    data = part.inline_data.data if part.inline_data is not None else None
    if data is not None:
        part = part.model_copy(update={"inline_data": part.inline_data.model_copy(update={"data": None})})
    plain = escaping.stored(part.model_dump(mode="json", exclude_none=True), "the artifact")
    return {NAME: FORM, "part": plain, "data": data}


def _part_of(record: Any, data: bytes | None) -> types.Part:
    part = types.Part.model_validate(escaping.shown(record["part"]))
    if data is not None:
        part.inline_data.data = data
    return part


def _version_of(file: _File, item: Item) -> ArtifactVersion | None:
    record = escaping.of_form(item.value, NAME, FORM)
    if record is None:
        return None
    version = int(item.key)
    return ArtifactVersion(version=version, canonical_uri=file.uri(version), **escaping.shown(record["version"]))


def _key(version: int) -> str:
    return f"{version:0{_DIGITS}}"
