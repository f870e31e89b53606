"""What docs/integrations/crewai.md shows runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "crewai.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
def test_a_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there: dict[str, Any] = {"__name__": "crewai_guide"}
    exec(compile(snippet, "crewai.md", "exec"), there)


def test_there_are_as_many_as_we_count() -> None:
    assert len(SNIPPETS) == 2
