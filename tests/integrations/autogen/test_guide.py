"""What docs/integrations/autogen.md shows runs as it is written, and the agent remembers what was said before."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from autogen_ext.models.replay import ReplayChatCompletionClient

import shoal

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "autogen.md").read_text()
(SNIPPET,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


async def test_the_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = ReplayChatCompletionClient(["on its way", "in your inbox", "you are welcome"])
    there: dict[str, Any] = {"client": client}
    exec(compile("async def snippet():\n" + textwrap.indent(SNIPPET, "    "), "autogen.md", "exec"), there)
    await there["snippet"]()
    asked = [[message.content for message in call["messages"][1:]] for call in client.create_calls]
    assert asked[-1] == ["where is my order?", "on its way", "and the invoice?", "in your inbox", "thank you"]
    async with shoal.open(tmp_path / "state") as store:
        found = await store.space("autogen").thread("ticket-7").load()
    assert "you are welcome" in str(found.state["team"])
