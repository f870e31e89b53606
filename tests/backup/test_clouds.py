"""The store of clouds and directories, as obstore gives it: a directory, memory, and a server that speaks S3."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Lock, Thread

import pytest
from obstore.exceptions import BaseError

import shoal
from shoal.backup import clouds
from shoal.backup.bucket import ObjectStore
from shoal.errors import BackupUnreachable, InvalidInput
from shoal.node.backup.restoring import restore
from simulation.bounds import altered

pytestmark = pytest.mark.real_time("it uses files, threads and sockets")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A server that speaks S3; its bucket."""
    server_of = pytest.importorskip("moto.server", reason="moto's server is not installed")
    from moto.s3.responses import S3Response

    # moto looks for an object, and makes it some time after. So of two puts at once both could be made, which S3 never does.
    lock, put_object = Lock(), S3Response.put_object

    def put_one_by_one(response: S3Response) -> object:
        with lock:
            return put_object(response)

    server = server_of.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two",
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_one_by_one)
        for name, value in settings.items():
            patch.setenv(name, value)
        import urllib.request

        request = urllib.request.Request(f"http://{host}:{port}/shoal-bucket", method="PUT")
        urllib.request.urlopen(request).close()
        yield "s3://shoal-bucket/prod"
    server.stop()


@pytest.fixture(params=["directory", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return clouds.opened(f"file://{tmp_path}/bucket")
    if request.param == "memory":
        return clouds.in_memory()
    return clouds.opened(request.getfixturevalue("s3") + f"/{os.urandom(4).hex()}")


async def test_an_object_is_made_once(store: ObjectStore) -> None:
    assert await store.put_new("manifests/1", b"one")
    assert not await store.put_new("manifests/1", b"two")
    assert await store.get("manifests/1") == b"one"


async def test_of_two_puts_at_once_one_is_made(store: ObjectStore) -> None:
    made = await asyncio.gather(*(store.put_new("manifests/2", b"%d" % nth) for nth in range(8)))
    assert made.count(True) == 1
    assert await store.get("manifests/2") == b"%d" % made.index(True)


async def test_a_part_of_an_object_is_read(store: ObjectStore) -> None:
    await store.put_new("segments/a", b"0123456789")
    assert await store.get("segments/a", 2, 5) == b"234"
    assert await store.get("segments/none") is None
    assert await store.get("segments/none", 2, 5) is None


async def test_an_object_is_replaced_as_a_whole(store: ObjectStore) -> None:
    await store.replace("keys/a", b"one")
    await store.replace("keys/a", b"two")
    assert await store.get("keys/a") == b"two"


async def test_objects_are_listed_in_the_order_of_their_names(store: ObjectStore) -> None:
    for nth in (3, 1, 2):
        await store.put_new(f"manifests/{nth}", b"x" * nth)
    await store.put_new("segments/1", b"")
    listed = [found async for found in store.listed("manifests/")]
    assert [(found.name, found.size) for found in listed] == [(f"manifests/{nth}", nth) for nth in (1, 2, 3)]
    assert all(found.modified_ms for found in listed)
    assert [found.name async for found in store.listed("manifests/", "manifests/1")] == ["manifests/2", "manifests/3"]


async def test_objects_are_deleted_and_those_that_are_gone_pass(store: ObjectStore) -> None:
    await store.put_new("segments/a", b"x")
    await store.delete(["segments/a", "segments/none"])
    assert [found async for found in store.listed("segments/")] == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "is no place for a backup"),
        ("/mnt/backup", "is no place for a backup"),
        ("s3:///x", "is no place for a backup"),
        ("s3://[::1", "is no place for a backup"),
        ("file:///tmp/%00x", "is no place for a backup"),
        ("s3://key:secret@bucket/x", "Give credentials in the environment"),
        ("s3://bucket/x?region=eu", "nothing else"),
        ("s3://bucket/a/../../b", "leads outside"),
        ("file:///tmp/../etc", "leads outside"),
        ("file://host/x", "no directory of this machine"),
    ],
)
def test_a_wrong_address_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        clouds.opened(url)
    assert "secret" not in refused.value.message


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackupUnreachable, match="cannot be used"):
        clouds.opened(f"file://{tmp_path}/file/bucket")


@pytest.mark.usefixtures("s3")
async def test_a_bucket_that_is_not_there_is_told() -> None:
    with pytest.raises(BackupUnreachable, match="cannot write") as refused:
        await clouds.opened("s3://shoal-no-such-bucket/prod").put_new("segments/a", b"x")
    assert "two" not in refused.value.message.split()


@pytest.mark.usefixtures("s3")
async def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(clouds, "RETRIES_MAX", 0)
    with pytest.raises(BackupUnreachable, match="cannot write"):
        await clouds.opened("s3://shoal-bucket/prod").put_new("segments/a", b"x")


async def test_an_answer_that_does_not_come_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds, "CALL_S", 0.0)
    store = clouds.in_memory()
    with pytest.raises(BackupUnreachable, match="no answer within"):
        await store._call("write x", asyncio.sleep(0.05))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, str]]]:
    """A server that answers every request in the same way: its status and its S3 error code."""
    wanted: list[tuple[int, str]] = []

    def answered(handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        status, code = wanted[0]
        body = f"<Error><Code>{code}</Code><Message>The request was refused.</Message></Error>".encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    methods = {f"do_{method}": answered for method in ("GET", "PUT", "POST", "DELETE")} | {"log_message": lambda *_: None}
    Answering = type("Answering", (BaseHTTPRequestHandler,), methods)
    server = HTTPServer(("127.0.0.1", 0), Answering)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(clouds, "RETRIES_MAX", 0)
    yield wanted
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (400, "ExpiredToken", "have expired: renew them"),
        (301, "PermanentRedirect", "AWS_REGION"),
        (400, "AuthorizationHeaderMalformed: the region 'us-east-1' is wrong", "AWS_REGION"),
        (403, "AccessDenied", "the right to read, list, write and delete"),
        (403, "SignatureDoesNotMatch", "credentials in the node's environment are wrong"),
        (503, "SlowDown", "try again later"),
        (403, "QuotaExceeded", "no room left"),
        (507, "InsufficientStorage", "no room left"),
        (404, "NoSuchBucket", "name of the bucket"),
    ],
    ids=str,
)
async def test_a_refusal_is_told_with_its_remedy(answers: list[tuple[int, str]], status: int, code: str, advice: str) -> None:
    answers.append((status, code))
    with pytest.raises(BackupUnreachable, match=advice):
        [_ async for _ in clouds.opened("s3://bucket/prod").listed("manifests/")]
    with pytest.raises(BackupUnreachable, match=advice) as refused:
        await clouds.opened("s3://bucket/prod").put_new("segments/a", b"x")
    assert "hidden" not in refused.value.message
    assert "Nothing that is stored here is lost" in refused.value.message
    assert "<" not in refused.value.message
    with pytest.raises(BackupUnreachable) as again:
        await clouds.opened("s3://bucket/prod").put_new("segments/a", b"x")
    assert again.value.message == refused.value.message  # It is logged when it changes.
    if status != 301:  # Of which obstore tells no content.
        assert f"{code}: The request was refused. Nothing" in refused.value.message  # Not the XML that they come in.


async def test_a_node_without_credentials_is_told(answers: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore asks the machine for a role then, at an address that means nothing to most people."""
    answers.append((403, "Forbidden"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = clouds.opened("s3://bucket/prod")
    asked = "Error performing PUT http://169.254.169.254/latest/api/token in 1 ms - Server returned: 403 Forbidden"

    async def refused(_name: str, _content: bytes) -> None:
        raise BaseError(asked)

    with pytest.raises(BackupUnreachable, match="No credentials were found: set AWS_ACCESS_KEY_ID") as told:
        await store._call("write x", refused("x", b""))
    assert "Nothing that is stored here is lost" in told.value.message


WRONG_REGION = [
    (301, "PermanentRedirect"),
    (400, "AuthorizationHeaderMalformed: the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
]


@pytest.mark.parametrize(("status", "code"), WRONG_REGION, ids=["redirect", "signature"])
async def test_a_wrong_region_declares_nothing_and_restores_nothing(
    answers: list[tuple[int, str]], tmp_path: Path, status: int, code: str
) -> None:
    answers.append((status, code))
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").register("r").set(1)
        with pytest.raises(BackupUnreachable, match=r"Nothing was declared\..*AWS_REGION") as refused:
            await store.backup.init("s3://bucket/prod")
        assert (await store.backup.status()).state == "none"
        with pytest.raises(BackupUnreachable, match=r"Nothing was recorded\..*AWS_REGION"):
            await store.space("crew").tiering.set("s3://bucket/cold", idle=3600)
        assert (await store.space("crew").tiering.get()).url == ""
    with pytest.raises(BackupUnreachable, match="AWS_REGION"):
        await restore("s3://bucket/prod", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert "hidden" not in refused.value.message


async def test_a_bucket_that_does_not_answer_is_told_before_a_client_gives_up(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_REGION": "us-east-1"}
        with pytest.MonkeyPatch.context() as patch, altered(tried_s=0.2):
            for name, value in {**settings, "AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two"}.items():
                patch.setenv(name, value)
            async with shoal.open(tmp_path / "state") as store:
                with pytest.raises(BackupUnreachable, match=r"did not answer within 0\.2 s\. Nothing was declared"):
                    await store.backup.init("s3://bucket/prod")
                with pytest.raises(BackupUnreachable, match=r"did not answer within 0\.2 s\. Nothing was recorded"):
                    await store.space("crew").tiering.set("s3://bucket/cold", idle=3600)
                assert (await store.backup.status()).state == "none"


async def test_a_region_that_becomes_wrong_stops_no_write(answers: list[tuple[int, str]], tmp_path: Path) -> None:
    """A bucket is moved, or a node starts with another environment."""
    async with shoal.open(tmp_path / "state") as store:
        await store.backup.init(f"file://{tmp_path}/bucket")
        answers.append(WRONG_REGION[0])
        moved = clouds.opened("s3://bucket/prod")
        with altered(ship_s=0.02), pytest.MonkeyPatch.context() as patch:
            patch.setattr(clouds.DirectoryStore, "put_new", lambda _, *given: moved.put_new(*given))
            for nth in range(20):
                await store.space("crew").counter("n").add(1)
                while nth == 0 and (await store.backup.status()).state != "failing":
                    await asyncio.sleep(0.02)
            view = await store.backup.status()
            assert (view.state, "AWS_REGION" in view.trouble) == ("failing", True)
        assert await store.space("crew").counter("n").value() == 20


async def test_a_directory_that_is_missing_is_empty_and_made_by_a_put(tmp_path: Path) -> None:
    """A wrong address of a restore leaves no directory."""
    store = clouds.opened(f"file://{tmp_path}/away/bucket")
    assert await store.get("manifests/1") is None
    assert [found async for found in store.listed("manifests/")] == []
    await store.delete(["manifests/1"])
    assert not (tmp_path / "away").exists()
    assert await store.put_new("manifests/1", b"x")
    assert await store.get("manifests/1") == b"x"
    other = clouds.opened(f"file://{tmp_path}/away/bucket")
    assert [found.name async for found in other.listed("manifests/")] == ["manifests/1"]
