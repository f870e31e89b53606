"""What docs/YJS.md shows runs as it is written, and names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shoal
from shoal.api.yjs.door import HOCUSPOCUS_PATH, YJS_PATH
from shoal.config import Config
from tests.test_threads_doc import program

TEXT = (Path(__file__).parent.parent / "docs" / "YJS.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=["beside editors", "in a space"])
async def test_a_snippet_runs_and_gives_what_it_says_also_a_second_time(snippet: str, tmp_path: Path) -> None:
    there: dict[str, object] = {"shoal": shoal}
    exec(compile(program(snippet), "YJS.md", "exec"), there)
    for _ in range(2):
        async with shoal.open(tmp_path) as store:
            space = store.space("crew")
            await there["snippet"](store, space, space.thread("t"))  # type: ignore[operator]


def test_the_path_and_the_bounds_are_those_of_the_code() -> None:
    assert f"`WS {YJS_PATH}`" in TEXT
    assert f"`WS {HOCUSPOCUS_PATH}`" in TEXT
    assert TEXT.count(HOCUSPOCUS_PATH.format(space="crew")) == 2
    assert YJS_PATH.format(space="crew", document="x").removesuffix("/x") in TEXT
    named = set(re.findall(r"`(?:--set )?((?:yjs|presence|document|allowed)_\w+)`", TEXT))
    assert named
    assert named <= set(Config.__struct_fields__)
