"""What docs/integrations/harness.md shows runs as it is written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.test import TestModel

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "harness.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [snippet] = SNIPPETS
    there: dict[str, Any] = {"model": TestModel(call_tools=[])}
    exec(compile("async def snippet():\n" + textwrap.indent(snippet, "    "), "harness.md", "exec"), there)
    await there["snippet"]()
