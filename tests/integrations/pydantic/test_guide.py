"""What docs/integrations/pydantic.md shows runs as it is written, each snippet after those before it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "pydantic.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model that calls the tool that the prompt asks for, and says what it returned."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(str(last.content))])
    asked = str(getattr(last, "content", ""))
    name = next((tool.name for tool in info.function_tools if tool.name in asked), "look_up")
    arguments = {"order": int(number[0])} if (number := re.findall(r"\d+", asked)) else {}
    return ModelResponse(parts=[ToolCallPart(name, arguments, tool_call_id="call")])


async def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there: dict[str, Any] = {"model": FunctionModel(script)}
    exec(compile("async def snippets():\n" + textwrap.indent("\n".join(SNIPPETS), "    "), "pydantic.md", "exec"), there)
    await there["snippets"]()


def test_there_are_as_many_as_we_count() -> None:
    assert len(SNIPPETS) == 5
