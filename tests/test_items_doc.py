"""What docs/ITEMS.md shows runs as it is written, and gives what it says. LangGraph's store has tests of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_threads_doc import run, unchecked

TEXT = (Path(__file__).parent.parent / "docs" / "ITEMS.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT.split("## LangGraph's store")[0], re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs_and_gives_what_it_says(snippet: str, tmp_path: Path) -> None:
    await run(snippet, tmp_path)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs_a_second_time_over_the_same_store(snippet: str, tmp_path: Path) -> None:
    await run(snippet, tmp_path)
    await run(unchecked(snippet), tmp_path)


def test_each_section_with_python_has_its_snippet() -> None:
    assert len(SNIPPETS) == 3
