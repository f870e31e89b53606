"""What the README shows runs as it is written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked
from tests.support.forked import Forked
from tests.terminal import in_terminal, shoal_in_terminal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SESSION = (ROOT / "docs" / "TERMINAL.md").read_text()
ADDRESS = "127.0.0.1:7400"  # As the README has it; here the system chooses the port.


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block(mark: str) -> str:
    """The one block of Python that holds this."""
    (found,) = [each for each in blocks("python") if mark in each]
    return found


def program(body: str, before: str = "") -> str:
    """A program whose `main` is `body`."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import asyncio\nimport shoal\n\n{before}\nasync def main():\n{indented}\nasyncio.run(main())\n"


def commands(program: str) -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith(program)]


def run(*command: str, directory: Path) -> str:
    finished = subprocess.run(
        command,
        cwd=directory,
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def run_again(program: str, *, directory: Path) -> str:
    """A program that `run` ran before: it is forked from a process that has imported `shoal`."""
    finished = forked.run(["-c", program], clean_environment(), timeout=PATIENCE_S, directory=directory)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the embedded example was run, twice: ./state is its store."""
    made = tmp_path_factory.mktemp("readme")
    embedded = block("asyncio.run(main())")
    state, *history = run(sys.executable, "-W", "error", "-c", embedded, directory=made).splitlines()
    assert state == "{'messages': ['step 1 is done'], 'step': 1}"
    assert len(history) == 2
    again, *longer = run_again(embedded, directory=made).splitlines()
    assert again == "{'messages': ['step 1 is done', 'step 2 is done'], 'step': 2}"
    assert longer[2:] == history
    return made


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    # A copy: one process may open a directory at a time.
    shutil.copytree(directory / "state", directory / "served")
    with served(directory / "served") as (process, at):
        yield at
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("command", [line for line in commands("shoal") if "./state" in line and "serve" not in line])
def test_a_command_over_the_directory_runs(directory: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert (result.exit_code, bool(result.stdout.strip())) == (0, True), result.output


def test_the_session_in_a_terminal_is_as_it_is_shown(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(directory / "state", tmp_path / "state")
    (session,) = blocks("console", SESSION)
    export, *steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    environment = {"PYTHONPATH": str(ROOT)} | dict(word.split("=") for word in export[0].split()[1:])
    started = [sys.executable, "-m", "shoal"]
    monkeypatch.chdir(tmp_path)
    ids: dict[str, str] = {}  # Those of the README, and what they are in this run.
    for command, wanted in steps:
        typed = re.sub(r"\b[0-9a-f]{4,}$", lambda match: next(ids[id] for id in ids if id.startswith(match[0])), command)
        _, *words = shlex.split(typed)
        if command == steps[0][0]:  # As people start it; the others are forked.
            shown = in_terminal(*started, *words, columns=100, environment=environment)
        else:
            shown = shoal_in_terminal(*words, columns=100, environment=environment)
        assert shown.code == 0, shown.text
        assert masked(shown.text) == masked(wanted), command
        ids.update(zip(hex_ids(wanted), hex_ids(shown.text), strict=True))


def hex_ids(text: str) -> list[str]:
    return [found[:12] for found in re.findall(r"\b[0-9a-f]{12,64}\b", text)]


def masked(text: str) -> list[list[str]]:
    """The words of each line, without what differs from run to run: ids and ages."""
    same = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", re.sub(r"\d+ (s|min|h) ago|\bnow\b", "AGE", text))
    return [line.split() for line in same.splitlines()]


def test_a_command_over_the_url_runs(url: str, directory: Path) -> None:
    (watch,) = [line for line in commands("shoal") if "--url" in line]
    words = shlex.split(watch.replace(f"http://{ADDRESS}", url))
    command = ["-m", "shoal", *words[1:], "--limit", "1"]
    with Forked(command, clean_environment(), directory=directory) as watching:
        add = urllib.request.Request(
            f"{url}/v1/spaces/crew/counters/n", b'{"add": 1}', headers={"Content-Type": "application/json"}
        )
        while watching.poll() is None:  # Until it watches, and has seen one.
            urllib.request.urlopen(add, timeout=PATIENCE_S).close()
        assert "counter" in watching.stdout.read()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_each_request_with_curl_succeeds(url: str, directory: Path) -> None:
    requests = commands("curl")
    assert requests
    for request in requests:
        words = shlex.split(request.replace("localhost:7400", url))
        assert "code" not in json.loads(run("curl", "-s", "--fail", *words[1:], directory=directory))


def test_the_example_that_connects_runs(url: str, directory: Path) -> None:
    connecting = block("# the same Store").replace(f"http://{ADDRESS}", url)
    run(sys.executable, "-c", program(connecting), directory=directory)


LOOK_UP = """
async def look_up():
    print("called")
    return {"due": 120}
"""


def test_the_first_example_calls_its_tool_once(tmp_path: Path) -> None:
    example = program(block('key="call-42", call=look_up)  # after'), LOOK_UP)
    assert run(sys.executable, "-W", "error", "-c", example, directory=tmp_path) == "called\n"
    assert run_again(example, directory=tmp_path) == ""


CREW = """
async def read(page):
    print(page)

async def finished(crew):
    states = []
    while not states or set(states) != {"finished"}:
        await asyncio.sleep(0.1)
        try:
            states = [agent.state for agent in (await crew.status()).agents]
        except shoal.errors.NotFound:
            pass  # Not declared yet.
"""


def test_the_example_of_a_crew_runs_each_agent(url: str, directory: Path) -> None:
    example = block("@crew.agent(").replace('"http://n1:7400,http://n2:7400,http://n3:7400"', repr(url)).replace("1000", "2")
    example = example.replace(
        "await crew.run()", "running = asyncio.create_task(crew.run())\n    await finished(crew)\n    running.cancel()"
    )
    assert sorted(run(sys.executable, "-c", program(example, CREW), directory=directory).split()) == ["0"] * 6 + ["1"] * 6


def test_the_example_of_threads_runs(tmp_path: Path) -> None:
    opened = 'async with shoal.open("./state") as store:\n    space = store.space("support")\n'
    threads = program(opened + "".join(f"    {line}\n" for line in block("request_approval(").splitlines()))
    first = run(sys.executable, "-W", "error", "-c", threads, directory=tmp_path)
    second = run_again(threads, directory=tmp_path)
    assert first.startswith("billed {'due': 120} at ")
    assert "1 steps are done and will not be called again: call-42" in first
    assert second == first


def test_every_command_is_one_that_there_is() -> None:
    help = CliRunner().invoke(app, ["--help"]).stdout
    for command in commands("shoal"):
        assert re.search(rf"\b{command.split()[1]}\b", help)


def test_every_target_of_make_is_one_that_there_is() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = commands("make")
    assert asked
    assert all(command.split()[1] in targets for command in asked)


SQLITE, SQLITE_DISK = "the same ÷ SQLite's saver", "the same, SQLite's saver"


def test_the_figures_of_the_comparison_are_measured() -> None:
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text().split("## LangGraph checkpointers")[1]

    def median(row: str) -> float:
        found = re.search(rf"^\| {re.escape(row)} \| ([\d.]+) × ", results, re.MULTILINE)
        assert found is not None, row
        return float(found[1])

    assert f"{median(SQLITE):.1f} times as many durable puts" in README
    assert round(1 / median("the same ÷ the saver in memory")) == 6
    assert "a sixth of\nthose of its saver in memory" in README
    assert f"{median('bytes on disk after close ÷ new data'):g} bytes of disk for each new byte" in README
    assert f"the SQLite saver takes {median(SQLITE_DISK):.0f}" in README


def test_every_link_leads_somewhere() -> None:
    linked = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert linked
    headings = {re.sub(r"\W+", "-", line.lower()) for line in re.findall(r"^## (.+)$", README, re.MULTILINE)}
    assert [link for link in linked if link.removeprefix("#") not in headings and not (ROOT / link).exists()] == []
