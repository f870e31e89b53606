"""What docs/integrations/durable-streams.md shows works as it is written, and names what there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from shoal.api.streams.headers import STREAMS_PATH
from shoal.config import Config
from tests.cli.conftest import clean_environment, served

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "durable-streams.md").read_text()
[SCRIPT] = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def test_the_commands_do_what_they_say(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        ran = await asyncio.create_subprocess_exec(
            *("bash", "-ec", SCRIPT.replace("http://127.0.0.1:7400", url)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(),
        )
        said, complained = await ran.communicate()
    assert (ran.returncode, complained) == (0, b"")
    read, events = said.decode().split("event: data\n", 1)
    assert read in re.search(r"# read it: (.*)", SCRIPT)[1]  # type: ignore[index]
    assert 'data:[{"token": "Hel"},{"token": "lo"},{"token": "!"}]' in events
    assert '"streamClosed":true' in events


def test_the_page_names_the_path_and_bounds_of_the_code() -> None:
    assert f"`{STREAMS_PATH}`" in TEXT
    named = set(re.findall(r"`(stream_\w+|allowed_\w+)`", TEXT))
    assert {"stream_append_bytes_max", "stream_ttl_s"} <= named <= set(Config.__struct_fields__)
