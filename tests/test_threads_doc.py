"""What docs/THREADS.md shows runs as it is written, and gives what it says."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import textwrap
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, served

DOCUMENT = Path(__file__).parent.parent / "docs" / "THREADS.md"
TEXT = DOCUMENT.read_text()
_FIRST, *SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
NAMES = {"asyncio": asyncio, "shoal": shoal, "aclosing": aclosing, "UTC": UTC, "datetime": datetime, "timedelta": timedelta}


def program(snippet: str) -> str:
    """The snippet as a coroutine, which checks what its lines give and raise."""
    lines = []
    for line in snippet.splitlines():
        if shown := re.fullmatch(r"( *)(.+?) +# → (.+)", line):
            indent, code, given = shown.groups()
            line = f"{indent}_given = ({code}); assert _given == ({given}), _given"
        elif refused := re.fullmatch(r"( *)(.+?) +# raises (\w+)", line):
            indent, code, error = refused.groups()
            line = f"{indent}with raises(shoal.errors.{error}): {code}"
        lines.append(line)
    return "async def snippet(store, space, thread):\n" + textwrap.indent("\n".join(lines), "    ")


async def run(snippet: str, directory: Path) -> None:
    there: dict[str, Any] = {**NAMES, "raises": pytest.raises}
    exec(compile(program(snippet), DOCUMENT.name, "exec"), there)
    async with shoal.open(directory) as store:
        space = store.space("crew")
        thread = space.thread("researcher-1")
        await thread.resume()
        await there["snippet"](store, space, thread)


def unchecked(snippet: str) -> str:
    """The snippet without what its lines give, which is another thing in a second run."""
    return re.sub(r" +# → .+", "", snippet)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs_and_gives_what_it_says(snippet: str, tmp_path: Path) -> None:
    await run(snippet, tmp_path)


# Not: whose messages are taken, whose steps are settled, or who is somebody else that begins the same thread.
AGAIN = [
    snippet
    for snippet in SNIPPETS
    if not re.search(r"message\.value|dies\(|again\.resume|first, second =|undo\(\)|what-if|old\.save", snippet)
]


@pytest.mark.parametrize("snippet", AGAIN, ids=[snippet.splitlines()[0][:40] for snippet in AGAIN])
async def test_a_snippet_runs_a_second_time_over_the_same_store(snippet: str, tmp_path: Path) -> None:
    await run(snippet, tmp_path)
    await run(unchecked(snippet), tmp_path)


def test_the_first_snippet_is_among_those_that_run_again() -> None:
    assert SNIPPETS[0] in AGAIN
    assert len(AGAIN) > len(SNIPPETS) / 2


@pytest.mark.parametrize(
    "snippet",
    [
        "(await thread.save({})).forked  # → True",
        "await thread.save({})  # raises HeadMoved",
        "await thread.load()  # raises HeadMoved",
    ],
)
async def test_a_snippet_that_is_wrong_is_noticed(snippet: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, shoal.errors.NotFound)):
        await run(snippet, tmp_path)


def shell(program: str) -> list[str]:
    """The lines of the block that calls this program."""
    (block,) = [block for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if f"{program} " in block]
    lines = [line.split("  #")[0].rstrip() for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_requests_with_curl_succeed(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        thread = f"{url}/v1/spaces/crew/threads/researcher-1"
        answers = [_answer([word.replace("$T", thread) for word in shlex.split(line)]) for line in shell("curl")]
    saved, changed, begun, ended, _, events, _, edited, undone, log, merge, replayed, audit, exported, resumed, paused = answers
    assert (changed["parents"], begun["begun"], ended["state"]) == ([saved["id"]], True, "done")
    assert [event["event"] for event in events["events"]] == [{"order": 17}]
    assert resumed["checkpoint"]["state"] == {"messages": ["hello", "hi"]}
    assert (edited["parents"], undone["parents"]) == ([changed["id"]], [edited["id"]])
    assert [(one["op"], one["channel"]) for one in log["mutations"][-2:]] == [("add", "draft"), ("remove", "draft")]
    assert (merge["heads"], merge["conflicts"]) == ([undone["id"]], {})
    assert (replayed["snapshot"], [event["event"] for event in replayed["events"]]) == (None, [{"order": 17}])
    assert [entry["kind"] for entry in audit["entries"]].count("checkpoint") == 4
    assert exported[0]["type"] == "export"
    assert (paused["status"], paused["by"]) == ("paused", "ana")


def _answer(command: list[str]) -> Any:
    done = subprocess.run([*command, "--silent", "--fail"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, (command, done)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return found if command[-1].endswith("/export") else found[0]


async def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shoal.open(tmp_path / "state") as store:
        thread = store.space("crew").thread("researcher-1")
        first = await thread.save({"step": 1}, metadata={"at": "planned"})
        await thread.branch("what-if", at=first.id)
        await thread.load(branch="what-if")
        await thread.save({"step": 2}, branch="what-if")
        await thread.step("charge", call=lambda: 7)
        await thread.request_approval("please read it")
    monkeypatch.chdir(tmp_path)
    for command in shell("shoal"):
        words = [first.id if word == "ID" else word for word in shlex.split(command)]
        arguments = [*words[1:], "--space", "crew", "--data", "./state"]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert (result.exit_code, bool(result.stdout.strip())) == (0, True), (command, result.output)


def test_every_link_leads_somewhere() -> None:
    linked = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert linked
    assert [link for link in linked if not (DOCUMENT.parent / link).exists()] == []
