"""What docs/NATIVE.md shows runs as it is written, and gives what it says."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from tests.test_threads_doc import unchecked

TEXT = (Path(__file__).parent.parent / "docs" / "NATIVE.md").read_text()
_FIRST, *SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def program(snippet: str) -> str:
    """The snippet as a coroutine, which checks what its lines give and raise."""
    lines = []
    for line in snippet.splitlines():
        if shown := re.fullmatch(r"( *)(.+?) +# → (.+)", line):
            line = f"{shown[1]}_given = ({shown[2]}); assert _given == ({shown[3]}), _given"
        elif refused := re.fullmatch(r"( *)(.+?) +# raises (\w+)", line):
            line = f"{refused[1]}with raises(shoal.errors.{refused[3]}): {refused[2]}"
        lines.append(line)
    return "async def snippet(space):\n" + textwrap.indent("\n".join(lines), "    ")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs_and_gives_what_it_says(snippet: str, tmp_path: Path) -> None:
    there: dict[str, Any] = {"shoal": shoal, "raises": pytest.raises}
    exec(compile(program(snippet), "NATIVE.md", "exec"), there)
    async with shoal.open(tmp_path) as store:
        await there["snippet"](store.space("crew"))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs_a_second_time_over_the_same_store(snippet: str, tmp_path: Path) -> None:
    for text in (snippet, unchecked(snippet)):
        there: dict[str, Any] = {"shoal": shoal, "raises": pytest.raises}
        exec(compile(program(text), "NATIVE.md", "exec"), there)
        async with shoal.open(tmp_path) as store:
            await there["snippet"](store.space("crew"))


async def test_a_snippet_that_gives_something_else_fails(tmp_path: Path) -> None:
    there: dict[str, Any] = {"shoal": shoal, "raises": pytest.raises}
    exec(compile(program('await space.counter("n").add(1)   # → 2'), "NATIVE.md", "exec"), there)
    async with shoal.open(tmp_path) as store:
        with pytest.raises(AssertionError):
            await there["snippet"](store.space("crew"))


def test_the_commands_run(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state"):
        pass
    block = re.search(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert block is not None
    commands = [shlex.split(line.replace("./state", str(tmp_path / "state"))) for line in block[1].splitlines()]
    assert len(commands) > 5
    for command in commands:
        result = CliRunner().invoke(app, command[1:])
        assert result.exit_code == 0, (command, result.output)
