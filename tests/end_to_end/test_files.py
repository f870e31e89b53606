"""Files through the three doors of a node, whose requests are far smaller than the files."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

import shoal
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import NotFound, TooLarge
from tests.end_to_end.conftest import Cli, Rest

DATA = random.Random(7).randbytes(3_000_000)
SHA = sha256(DATA).hexdigest()


async def put(rest: Rest, path: str, data: bytes, **headers: str) -> aiohttp.ClientResponse:
    return await rest.http.put(rest.path + path, data=io.BytesIO(data), headers=headers)


async def test_a_file_goes_in_at_one_door_and_out_at_all(space: Space, rest: Rest, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(DATA)
    ref = await space.thread("t").put_file("page.png", tmp_path / "page.png")
    assert (ref.sha256, ref.size, ref.type) == (SHA, len(DATA), "image/png")
    async with rest.http.get(f"{rest.path}/threads/t/files/page.png") as answer:
        assert answer.status == 200
        assert await answer.read() == DATA
        assert answer.headers["ETag"] == f'"{SHA}"'
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    await cli("file", "get", "page.png", str(tmp_path / "out"), "--thread", "t")
    assert (tmp_path / "out").read_bytes() == DATA
    [listed] = await cli("file", "list", "--thread", "t")
    assert (listed["name"], listed["size"], listed["sha256"]) == ("page.png", len(DATA), SHA)
    assert [file["name"] for file in (await rest("GET", "/threads/t/files"))["files"]] == ["page.png"]


async def test_a_space_has_files_of_its_own(space: Space, rest: Rest, cli: Cli, tmp_path: Path) -> None:
    answer = await put(rest, "/files/a%2Fb.txt", b"hello", **{"Content-Type": "text/plain"})
    assert (answer.status, (await answer.json())["file"]["sha256"]) == (201, sha256(b"hello").hexdigest())
    assert [file.name for file in await space.files()] == ["a/b.txt"]
    (tmp_path / "c").write_bytes(DATA)
    await cli("file", "put", str(tmp_path / "c"), "--name", "c.bin")
    assert [file["name"] for file in (await rest("GET", "/files"))["files"]] == ["a/b.txt", "c.bin"]
    assert (await rest("DELETE", "/files/a%2Fb.txt"))["existed"]
    assert await cli("file", "delete", "c.bin", "--yes") == [{"existed": True}]
    assert await space.files() == []


@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-99", 206, 0, 100),
        ("bytes=2999990-", 206, 2_999_990, 3_000_000),
        ("bytes=-7", 206, 2_999_993, 3_000_000),
        ("bytes=1000000-1999999", 206, 1_000_000, 2_000_000),
        ("bytes=0-99999999", 206, 0, 3_000_000),
        ("bytes=3000000-", 416, 0, 0),
        ("bytes=99999999999999999999-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
        ("bytes=9-3", 200, 0, 3_000_000),
        ("bytes=0-1,5-6", 200, 0, 3_000_000),
        ("lines=0-1", 200, 0, 3_000_000),
        ("bytes=-", 200, 0, 3_000_000),
    ],
)
async def test_parts_of_a_file_are_sent_as_asked(rest: Rest, asked: str, status: int, start: int, stop: int) -> None:
    await put(rest, "/threads/t/files/x", DATA)
    async with rest.http.get(f"{rest.path}/threads/t/files/x", headers={"Range": asked}) as answer:
        assert answer.status == status
        if status < 300:
            assert await answer.read() == DATA[start:stop]
        else:
            assert (await answer.json(content_type=None))["code"] == "range-not-satisfiable"
        assert answer.headers.get("Content-Range") == (f"bytes {start}-{stop - 1}/3000000" if status == 206 else None)


async def test_a_file_that_is_held_is_not_sent_again(rest: Rest) -> None:
    await put(rest, "/threads/t/files/x", DATA)
    at = f"{rest.path}/threads/t/files/x"
    async with rest.http.get(at, headers={"If-None-Match": f'"{SHA}"'}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with rest.http.get(at, headers={"Range": "bytes=0-1", "If-Range": '"another"'}) as answer:
        assert answer.status == 200
    async with rest.http.head(at) as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, "3000000")
    async with rest.http.get(f"{rest.path}/threads/t/files/none") as answer:
        assert answer.status == 404


async def test_a_page_of_a_user_runs_nowhere(rest: Rest) -> None:
    await put(rest, "/threads/t/files/x.html", b"<script>alert(1)</script>", **{"Content-Type": "text/html"})
    async with rest.http.get(f"{rest.path}/threads/t/files/x.html") as answer:
        assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''x.html"
        assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"


async def test_a_body_of_another_hash_is_refused(rest: Rest) -> None:
    def digest(of: bytes) -> str:
        return f"sha-256=:{base64.b64encode(sha256(of).digest()).decode()}:"

    answer = await put(rest, "/threads/t/files/x", DATA, **{"Repr-Digest": digest(b"another")})
    assert (answer.status, (await answer.json())["code"]) == (400, "invalid-input")
    assert (await rest("GET", "/threads/t/files"))["files"] == []
    assert (await put(rest, "/threads/t/files/x", DATA, **{"Repr-Digest": digest(DATA)})).status == 201


async def test_a_body_that_breaks_off_stores_no_file(rest: Rest) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield DATA[:2_000_000]
        raise ConnectionError

    with pytest.raises((ConnectionError, aiohttp.ClientError)):
        await rest.http.put(rest.path + "/threads/t/files/x", data=cut())
    assert (await rest("GET", "/threads/t/files"))["files"] == []
    assert (await put(rest, "/threads/t/files/x", DATA)).status == 201


async def test_a_state_over_http_refers_to_its_file(space: Space, url: str) -> None:
    thread = space.thread("t")
    ref = await thread.put_file("x", DATA)
    await thread.save({"page": ref})
    async with shoal.connect(url) as other:
        held = (await other.space(space.name).thread("t").load()).state["page"]
        async with other.space(space.name).thread("t").open_file(held) as stream:
            await stream.seek(1_000_000)
            assert await stream.read(10) == DATA[1_000_000:1_000_010]
        with pytest.raises(TooLarge, match="put_file"):
            await thread.save({"page": DATA})
        with pytest.raises(NotFound):
            await other.space(space.name).thread("another").save({"page": held})


async def test_a_value_that_is_too_large_is_told_of_files(space: Space, rest: Rest, cli: Cli, tmp_path: Path) -> None:
    text = "x" * 1_500_000
    with pytest.raises(TooLarge, match="put_file"):
        await space.register("goal").set(text)
    body = io.BytesIO(json.dumps({"value": text}).encode())
    async with rest.http.put(f"{rest.path}/registers/goal", data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 413
        assert "/files/" in (await answer.json())["detail"]
    assert "put_file" in await cli.refused("register", "set", "goal", json.dumps(text))
    async with shoal.open(tmp_path / "state", config=Config(request_bytes_max=1_000_000)) as store:
        with pytest.raises(TooLarge, match="put_file"):
            await store.space("s").register("goal").set(text)


def test_blocking_handles_have_files_too(url: str) -> None:
    with shoal.sync.connect(url) as store:
        thread = store.space("blocking").thread("t")
        ref = thread.put_file("x", [DATA[:10], DATA[10:]])
        with thread.open_file("x") as stream:
            assert stream.read(5) == DATA[:5]
            assert b"".join(stream) == DATA[5:]
            assert stream.size == ref.size
        assert [file.name for file in thread.files()] == ["x"]
        assert thread.delete_file("x")
