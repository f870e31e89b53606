"""What docs/integrations/adk.md shows runs as it is written."""

from __future__ import annotations

import re
import textwrap
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "adk.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


class Polite(BaseLlm):
    model: str = "polite"

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="on its way")]))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = types.Content(role="user", parts=[types.Part(text="where is my order?")])
    there: dict[str, Any] = {"agent": LlmAgent(name="clerk", model=Polite()), "message": message}
    exec(compile("async def snippet():\n" + textwrap.indent(snippet, "    "), "adk.md", "exec"), there)
    await there["snippet"]()


def test_there_are_as_many_as_we_count() -> None:
    assert len(SNIPPETS) == 3
