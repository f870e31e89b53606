"""What docs/WATCHING.md shows runs as it is written: a watch goes on where its bookmark says, at every door."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked

TEXT = (Path(__file__).parent.parent / "docs" / "WATCHING.md").read_text()
(SNIPPET,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
TOLD = """
    told.append(change.name)
    if len(told) == 3:
        return bookmark
"""
PROGRAM = "async def watch(space, bookmark, told):\n" + textwrap.indent(SNIPPET.rstrip() + TOLD, "    ")


async def test_the_loop_goes_on_where_its_bookmark_says(tmp_path: Path) -> None:
    there: dict[str, Any] = {"shoal": shoal}
    exec(compile(PROGRAM, "WATCHING.md", "exec"), there)
    async with shoal.open(tmp_path) as store, asyncio.timeout(PATIENCE_S):
        space = store.space("crew")
        first: list[str] = []
        watching = asyncio.create_task(there["watch"](space, None, first))
        number = 0
        while not watching.done():  # It begins when it is ready to: what was written before is not told.
            number += 1
            await space.counter(f"crew-{number}").add(1)
            await space.counter(f"other-{number}").add(1)
        for _ in range(3):
            number += 1
            await space.counter(f"crew-{number}").add(1)
        then: list[str] = []
        await there["watch"](space, await watching, then)
    begun = int(first[0].removeprefix("crew-"))
    assert first + then == [f"crew-{begun + n}" for n in range(6)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_request_and_the_command_tell_of_a_change(tmp_path: Path) -> None:
    (curl,) = [line for line in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)[0].splitlines() if line]
    command = re.search(r"`shoal (watch .*?) --after BOOKMARK", TEXT)
    assert command is not None
    with served(tmp_path / "state") as (_, url):
        words = shlex.split(curl.replace("http://127.0.0.1:7400", url))
        with subprocess.Popen([*words, "--silent"], stdout=subprocess.PIPE, text=True) as stream:
            assert stream.stdout is not None
            events = iter(stream.stdout.readline, "")
            assert next(line for line in events if line.startswith("event: ")) == "event: began\n"
            bookmark = next(events).removeprefix("id: ").strip()
            with shoal.sync.connect(url) as store:
                store.space("crew").thread("crew-1").save({"step": 1})
            assert next(line for line in events if line.startswith("event: ")) == "event: change\n"
            stream.kill()
        words = [*shlex.split(command[1]), "--after", bookmark, "--url", url, "--limit", "1"]
        shown = forked.run(["-m", "shoal", *words], clean_environment(), timeout=PATIENCE_S)
        assert "thread crew-1  save" in shown.stdout


def test_every_setting_exists() -> None:
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+_max)`", TEXT))
    assert len(named) == 2
    assert named <= set(Config.__struct_fields__)
