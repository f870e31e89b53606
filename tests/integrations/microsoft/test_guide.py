"""What docs/integrations/microsoft.md shows runs as it is written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.microsoft.worker import Counting, Polite

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "microsoft.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there: dict[str, Any] = {"first": Counting("first", 0), "client": Polite()}
    exec(compile("async def snippet():\n" + textwrap.indent(snippet, "    "), "microsoft.md", "exec"), there)
    await there["snippet"]()


def test_there_are_as_many_as_we_count() -> None:
    assert len(SNIPPETS) == 2
