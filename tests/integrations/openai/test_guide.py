"""What docs/integrations/openai.md shows runs as it is written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from shoal.integrations.openai import ShoalSession

TEXT = (Path(__file__).parents[3] / "docs" / "integrations" / "openai.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def agents() -> tuple[Agent[Any], Agent[Any]]:
    """One that answers, and one that asks before it pays."""

    @function_tool(needs_approval=True)
    def refund() -> str:
        """Refund an order."""
        return "done"

    clerk = ScriptedModel([[function_call("refund", {}, call_id="c")], [assistant_message("refunded")]])
    plain = ScriptedModel([[assistant_message("on its way")]])
    return Agent(name="agent", model=plain), Agent(name="clerk", model=clerk, tools=[refund])


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[snippet.splitlines()[0][:40] for snippet in SNIPPETS])
async def test_a_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent, clerk = agents()
    there: dict[str, Any] = {"agent": agent, "clerk": clerk, "Runner": Runner}
    exec(compile("async def snippet(session):\n" + textwrap.indent(snippet, "    "), "openai.md", "exec"), there)
    async with ShoalSession.open(tmp_path / "other", "s") as session:
        await there["snippet"](session)


def test_there_are_as_many_as_we_count() -> None:
    assert len(SNIPPETS) == 4
