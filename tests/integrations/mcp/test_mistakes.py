"""Wrong calls, wrong starts, and a node that is gone: each is answered in words, and nothing is written."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

import shoal
from shoal.integrations.mcp.server import Lines
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.integrations.mcp.conftest import WHOLE_TEST_S, answer, client, refusal


async def test_wrong_calls_are_answered_in_words_and_write_nothing(target: list[str]) -> None:
    long = "n" * 2048
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("load_thread", {"thread": long}, "InvalidName"),
        ("save_thread", {"thread": long, "state": {}, "expect_head": ""}, "InvalidName"),
        ("save_thread", {"thread": "t", "state": {}}, "missing required field `expect_head`"),
        ("save_thread", {"thread": "t", "state": 1, "expect_head": ""}, "Expected `object`"),
        ("save_thread", {"thread": "t", "state": {"x": 1}, "expect_head": "", "color": 1}, "unknown field `color`"),
        ("edit_thread", {"thread": "t", "append": {"log": "text"}}, "Expected `array`"),
        ("edit_thread", {"thread": "t", "set": {"x": 1}, "idempotency_key": long}, "InvalidName"),
        ("put_item", {"namespace": [], "key": "k", "value": 1}, "length >= 1"),
        ("put_item", {"namespace": ["a.b"], "key": "k", "value": 1}, "period"),
        ("put_item", {"namespace": ["a"], "key": "k", "value": {"$type": "nonsense", "value": 1}}, "InvalidValue"),
        ("edit_document", {"document": "d", "patch": [{"op": "nonsense", "path": "/x"}]}, "must be one of add"),
        ("edit_document", {"document": long, "content": {}}, "InvalidName"),
        ("write_value", {"kind": "budget", "name": "b", "add": 1}, "Invalid enum value"),
        ("write_value", {"kind": "counter", "name": "c", "add": 2**70}, "InvalidInput"),
        ("read_journal", {"thread": "t", "after": "!"}, "no cursor"),
        ("read_journal", {"thread": "t", "limit": 100_000}, "<= 1000"),
    ]
    async with client(*target) as made:
        for tool, arguments, text in wrong:
            refused = await refusal(made, tool, **arguments)
            assert text in refused, (tool, refused)
            assert "Traceback" not in refused
        with pytest.raises(MCPError, match="there is no tool 'nothing'"):
            await made.call_tool("nothing", {})
        for kind in ("thread", "document", "counter"):
            assert await answer(made, "list_names", kind=kind) == {"names": [], "more": False}
        with pytest.raises(MCPError, match="NotFound"):
            await made.read_resource("shoal://default/threads/t")


async def test_a_key_that_was_used_for_something_else_is_refused(target: list[str]) -> None:
    async with client(*target) as made:
        await answer(made, "write_value", kind="counter", name="n", add=1, idempotency_key="same")
        refused = await refusal(made, "write_value", kind="counter", name="n", add=2, idempotency_key="same")
        assert refused.startswith("KeyReused: ")
        assert (await answer(made, "read_value", kind="counter", name="n"))["value"] == 1


async def test_a_writing_tool_of_a_server_that_only_reads_is_refused(tmp_path: Path) -> None:
    async with client("--data", str(tmp_path / "state")) as made:
        await answer(made, "list_names", kind="thread")
    async with client("--data", str(tmp_path / "state"), "--read-only") as made:
        with pytest.raises(MCPError, match="only reads"):
            await made.call_tool("edit_thread", {"thread": "t", "set": {"x": 1}})
        assert (await answer(made, "list_names", kind="thread"))["names"] == []


async def test_secret_fields_are_hidden_and_only_other_channels_are_written(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        schema = shoal.Schema("case", model={"type": "object", "properties": {"token": {}, "n": {}}}, secret=["/token"])
        await store.space("default").thread("t", schema=schema).save({"token": "hush", "n": 1})
    async with client("--data", str(tmp_path / "state")) as made:
        loaded = await answer(made, "load_thread", thread="t")
        assert loaded["state"] == {"token": "«secret»", "n": 1}
        again = await refusal(made, "save_thread", thread="t", state=loaded["state"], expect_head=loaded["id"])
        hidden = await refusal(made, "edit_thread", thread="t", set={"token": "«secret»"})
        assert "secret fields (/token)" in again
        assert "Nothing was written" in hidden
        await answer(made, "edit_thread", thread="t", set={"n": 2})
        (resource,) = (await made.read_resource("shoal://default/threads/t")).contents
        assert "hush" not in resource.model_dump_json()
        assert (await answer(made, "load_thread", thread="t"))["state"] == {"token": "«secret»", "n": 2}
    async with shoal.open(tmp_path / "state") as store:
        found = await store.space("default").thread("t").load()
        assert (found.state, found.secret) == ({"token": "hush", "n": 2}, ("/token",))


async def test_when_the_node_is_gone_a_tool_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    data = tmp_path / "state"
    async with asyncio.timeout(WHOLE_TEST_S):
        with served(data) as (process, url):
            async with client("--url", url) as made:
                await answer(made, "write_value", kind="counter", name="n", add=1, idempotency_key="a")
                process.send_signal(signal.SIGKILL)
                process.wait(PATIENCE_S)
                gone = await made.call_tool("write_value", {"kind": "counter", "name": "n", "add": 1, "idempotency_key": "b"})
                assert gone.is_error
                assert gone.structured_content is not None
                assert gone.structured_content["retryable"] is True
                with served(data, "--listen", url.removeprefix("http://")):
                    back = await answer(made, "write_value", kind="counter", name="n", add=1, idempotency_key="b")
                    assert back["value"] == 2


def test_lines_that_are_no_messages_do_not_end_the_server(tmp_path: Path) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    sent = b'no json\n{}\n[]\n\xff\xfe\n{"jsonrpc": "2.0", "id": [], "method": 1}\n' + json.dumps(hello).encode() + b"\n"
    ended = run("--data", str(tmp_path / "state"), sent=sent)
    assert ended.returncode == 0
    replies = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["result"]["serverInfo"]["name"] for each in replies if each.get("id") == 1] == ["shoal"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "no store was given"),
        (["--data", "x", "--url", "http://127.0.0.1:9"], "both given"),
        (["--data", "missing", "--read-only"], "there is no store"),
        (["--data", "made", "--space", "n" * 2048], "at most 1024 bytes"),
    ],
)
def test_a_server_that_cannot_start_says_why(arguments: list[str], text: str, tmp_path: Path) -> None:
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode in (1, 2)
    assert text in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()
    assert not list(tmp_path.iterdir())


async def test_a_directory_that_another_server_has_open_is_refused(tmp_path: Path) -> None:
    async with client("--data", str(tmp_path / "state")):
        ended = run("--data", str(tmp_path / "state"))
        assert ended.returncode == 1
        assert b"is open in process" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_server_that_waits_for_input(number: signal.Signals, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with asyncio.timeout(WHOLE_TEST_S), client("--data", str(tmp_path / "state"), pid=pid) as made:
        await answer(made, "write_value", kind="counter", name="n", add=1)
        subprocess.run(["kill", f"-{int(number)}", pid.read_text().strip()], check=True)
        with pytest.raises(MCPError, match=r"[Cc]losed"):
            while True:
                await answer(made, "read_value", kind="counter", name="n")


async def test_a_line_that_is_too_long_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"short\n" + b"x" * 100 + b"\n" + b"y" * 10 + b"\nlast")
    with path.open("rb") as file:
        assert [line async for line in Lines(file.fileno(), line_bytes_max=16)] == ["short\n", "", "y" * 10 + "\n", "last"]


def run(*arguments: str, sent: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "shoal", "mcp", *arguments]
    return subprocess.run(
        command, input=sent, capture_output=True, env=clean_environment(), timeout=WHOLE_TEST_S, check=False, cwd=cwd
    )
