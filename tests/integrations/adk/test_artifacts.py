"""Artifacts: the laws that the ADK's own services keep, and what is ours."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts.artifact_util import get_artifact_uri
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

import shoal
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidName, InvalidValue, SchemaTooNew, TooLarge
from shoal.integrations.adk import ShoalArtifactService, ShoalServices
from tests.integrations.adk.events import WHO

FILE: dict[str, Any] = {**WHO, "session_id": "s", "filename": "a.txt"}


def text(of: str) -> types.Part:
    return types.Part(text=of)


def image(data: bytes = b"\x89PNG\x00\xff") -> types.Part:
    return types.Part(inline_data=types.Blob(mime_type="image/png", data=data, display_name="i"))


@pytest.fixture(params=["embedded", "served", "theirs"])
async def service(request: pytest.FixtureRequest, tmp_path: Path, space: str) -> AsyncIterator[BaseArtifactService]:
    if request.param == "theirs":
        yield InMemoryArtifactService()
    else:
        where = tmp_path / "state"
        store = shoal.open(where) if request.param == "embedded" else shoal.connect(request.getfixturevalue("url"))
        async with store as opened:
            yield ShoalArtifactService(opened, space=space)


async def test_versions_count_from_zero_and_come_back(service: BaseArtifactService) -> None:
    assert await service.load_artifact(**FILE) is None
    parts = [text("one"), image(), types.Part(file_data=types.FileData(file_uri="gs://b/c", mime_type="text/csv")), text("")]
    for nth, part in enumerate(parts):
        assert await service.save_artifact(**FILE, artifact=part, custom_metadata={"n": nth}) == nth
    for nth, part in enumerate(parts):
        assert await service.load_artifact(**FILE, version=nth) == part
    assert await service.load_artifact(**FILE) == parts[-1]
    assert await service.load_artifact(**FILE, version=9) is None
    assert await service.load_artifact(**FILE, version=-1) is None
    assert await service.list_versions(**FILE) == [0, 1, 2, 3]
    listed = await service.list_artifact_versions(**FILE)
    assert [each.mime_type for each in listed] == ["text/plain", "image/png", "text/csv", "text/plain"]
    assert [each.custom_metadata for each in listed] == [{"n": nth} for nth in range(4)]
    assert await service.get_artifact_version(**FILE) == listed[-1]
    assert await service.get_artifact_version(**FILE, version=1) == listed[1]
    assert await service.get_artifact_version(**FILE, version=7) is None


async def test_artifacts_as_plain_dicts(service: BaseArtifactService) -> None:
    await service.save_artifact(**FILE, artifact={"inlineData": {"mimeType": "text/csv", "data": "YSxi"}})
    loaded = await service.load_artifact(**FILE)
    assert loaded is not None
    assert loaded.inline_data is not None
    assert (loaded.inline_data.mime_type, loaded.inline_data.data) == ("text/csv", b"a,b")


async def test_scopes(service: BaseArtifactService) -> None:
    await service.save_artifact(**FILE, artifact=text("mine"))
    await service.save_artifact(**FILE | {"filename": "user:b.txt"}, artifact=text("of the user"))
    other = FILE | {"session_id": "t", "filename": "c/d.txt"}
    await service.save_artifact(**other, artifact=text("other"))
    assert await service.list_artifact_keys(**WHO, session_id="s") == ["a.txt", "user:b.txt"]
    assert await service.list_artifact_keys(**WHO, session_id="t") == ["c/d.txt", "user:b.txt"]
    assert await service.list_artifact_keys(**WHO) == ["user:b.txt"]
    assert await service.list_artifact_keys(app_name="desk", user_id="ben", session_id="s") == []
    for session in ("s", "t", None):
        assert await service.load_artifact(**WHO, session_id=session, filename="user:b.txt") == text("of the user")
    assert await service.load_artifact(**FILE | {"session_id": "t"}) is None


async def test_deleted_objects_are_gone_and_begin_anew(service: BaseArtifactService) -> None:
    await service.delete_artifact(**FILE)
    for _ in range(3):
        await service.save_artifact(**FILE, artifact=text("secret"))
    await service.delete_artifact(**FILE)
    assert await service.load_artifact(**FILE) is None
    assert await service.list_versions(**FILE) == []
    assert await service.list_artifact_keys(**WHO, session_id="s") == []
    assert await service.save_artifact(**FILE, artifact=text("new")) == 0


async def test_references_are_followed_in_the_scope_and_not_for_ever(service: BaseArtifactService) -> None:
    def reference(filename: str, user: str = "ana") -> types.Part:
        uri = get_artifact_uri("desk", user, filename, 0, "s")
        return types.Part(file_data=types.FileData(file_uri=uri))

    await service.save_artifact(**FILE, artifact=text("the content"))
    for name, to in (("b.txt", "a.txt"), ("c.txt", "b.txt"), ("self.txt", "self.txt")):
        await service.save_artifact(**FILE | {"filename": name}, artifact=reference(to))
    assert await service.load_artifact(**FILE | {"filename": "c.txt"}) == text("the content")
    with pytest.raises(InputValidationError, match="recursion"):
        await service.load_artifact(**FILE | {"filename": "self.txt"})
    for bad in (reference("a.txt", "ben"), types.Part(file_data=types.FileData(file_uri="artifact://nonsense"))):
        with pytest.raises(InputValidationError):
            await service.save_artifact(**FILE | {"filename": "bad.txt"}, artifact=bad)


@pytest.mark.parametrize(
    "bad", [{"app_name": ""}, {"user_id": "../x"}, {"session_id": None}, {"session_id": "/s"}, {"user_id": "a\0"}]
)
async def test_names_that_are_not_legal_are_refused(service: BaseArtifactService, bad: dict[str, Any]) -> None:
    with pytest.raises(InputValidationError):
        await service.save_artifact(**FILE | bad, artifact=text("x"))


async def test_an_artifact_without_content_is_refused(service: BaseArtifactService) -> None:
    with pytest.raises(InputValidationError, match="Not supported artifact type"):
        await service.save_artifact(**FILE, artifact=types.Part())
    assert await service.list_versions(**FILE) == []


async def test_two_that_save_at_once_get_two_versions(artifacts: ShoalArtifactService) -> None:
    saved = await asyncio.gather(*(artifacts.save_artifact(**FILE, artifact=text(f"{nth}")) for nth in range(8)))
    assert sorted(saved) == list(range(8))
    for nth, version in enumerate(saved):
        assert await artifacts.load_artifact(**FILE, version=version) == text(f"{nth}")


async def test_a_session_called_user_is_a_session(artifacts: ShoalArtifactService) -> None:
    await artifacts.save_artifact(**FILE | {"session_id": "user"}, artifact=text("mine"))
    assert await artifacts.list_artifact_keys(**WHO) == []


async def test_bad_input_writes_nothing(artifacts: ShoalArtifactService) -> None:
    with pytest.raises(InvalidValue, match="Nothing was written"):
        await artifacts.save_artifact(**FILE, artifact=text("x"), custom_metadata={"a": object()})
    with pytest.raises(InvalidName, match="at most 1024 bytes"):
        await artifacts.save_artifact(**FILE | {"filename": "f" * 2048}, artifact=text("x"))
    with pytest.raises(InputValidationError, match="filename"):
        await artifacts.save_artifact(**FILE | {"filename": ""}, artifact=text("x"))
    assert await artifacts.list_artifact_keys(**WHO, session_id="s") == []


async def test_a_text_is_bounded_by_a_request(tmp_path: Path) -> None:
    async with ShoalServices.open(tmp_path / "state", config=Config(request_bytes_max=65_536)) as services:
        with pytest.raises(TooLarge):
            await services.artifacts.save_artifact(**FILE, artifact=text("x" * 65_536))
        assert await services.artifacts.save_artifact(**FILE, artifact=image(b"x" * 65_536)) == 0


@pytest.mark.parametrize("who", [{}, {"filename": "user:a/b.png"}])
async def test_large_content_is_a_file(tmp_path: Path, who: dict[str, Any]) -> None:
    where, one, other = {**FILE, **who}, random.Random(1).randbytes(400_000), random.Random(2).randbytes(300_000)
    async with shoal.open(tmp_path, config=Config(request_bytes_max=262_144)) as store:
        artifacts = ShoalArtifactService(store, space="adk")
        for nth, data in enumerate([one, b"small", one, other]):
            assert await artifacts.save_artifact(**where, artifact=image(data)) == nth
        for nth, data in enumerate([one, b"small", one, other]):
            assert await artifacts.load_artifact(**where, version=nth) == image(data)
        [name] = [name async for name in store.space("adk").threads()]
        kept = await store.space("adk").thread(name).files()
        assert sorted(file.size for file in kept) == [300_000, 400_000]
        await artifacts.delete_artifact(**where)
        assert await artifacts.load_artifact(**where) is None
        assert [name async for name in store.space("adk").threads()] == []


async def test_a_large_version_outlives_a_deletion_beside_it(artifacts: ShoalArtifactService, monkeypatch: Any) -> None:
    versioned, large = artifacts._versioned, random.Random(1).randbytes(300_000)

    async def deleted_first(*given: Any) -> int:
        await artifacts.delete_artifact(**FILE)
        return await versioned(*given)

    monkeypatch.setattr(artifacts, "_versioned", deleted_first)
    assert await artifacts.save_artifact(**FILE, artifact=image(large)) == 0
    assert await artifacts.load_artifact(**FILE) == image(large)


async def test_a_newer_form_is_refused(opened: Store, space: str) -> None:
    artifacts = ShoalArtifactService(opened, space=space)
    await artifacts.save_artifact(**FILE, artifact=text("x"))
    where = ("{desk}", "artifacts", "ana", "session", "s", "a%2etxt")
    await opened.space(space).items.put(where, "0000000000", {"adk": 2})
    for call in (artifacts.list_versions(**FILE), artifacts.save_artifact(**FILE, artifact=text("y"))):
        with pytest.raises(SchemaTooNew):
            await call


async def test_ints_are_ids(artifacts: ShoalArtifactService) -> None:
    who: dict[str, Any] = {"app_name": 1, "user_id": 2, "session_id": 3}
    assert await artifacts.save_artifact(**who, filename="a.txt", artifact=text("hi")) == 0
    same: dict[str, Any] = {name: str(id) for name, id in who.items()}
    assert await artifacts.load_artifact(**same, filename="a.txt") == text("hi")
    assert await artifacts.list_artifact_keys(**who) == ["a.txt"]
    with pytest.raises(InvalidName, match="must be text, an int or a UUID"):
        await artifacts.list_artifact_keys(**who | {"user_id": None})
