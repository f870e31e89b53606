"""What docs/SUBJECTS.md shows runs as it is written, and gives what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.workflows.subjects import KINDS, SubjectErased
from tests.test_native_doc import program

TEXT = (Path(__file__).parent.parent / "docs" / "SUBJECTS.md").read_text()


async def test_the_snippet_runs_and_gives_what_it_says(tmp_path: Path) -> None:
    [snippet] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    there: dict[str, Any] = {"shoal": shoal, "raises": pytest.raises}
    exec(compile(program(snippet), "SUBJECTS.md", "exec"), there)
    async with shoal.open(tmp_path) as store:
        await there["snippet"](store.space("crew"))


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    with shoal.sync.open(tmp_path / "state") as store:
        store.space("clinic").thread("intake-7").save({"n": 1})
    said = [CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False) for line in block.splitlines()]
    assert [each.exit_code for each in said] == [0, 0, 0]
    assert said[1].stdout == "clinic  thread intake-7\n"
    assert said[2].stdout == "clinic  thread intake-7  erased\n"


def test_the_page_names_all_kinds_and_outcomes() -> None:
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE))))
    assert named == {*KINDS, *get_args(get_type_hints(SubjectErased)["outcome"])}
