"""A person corrects, with the commands, what an agent of a crew in another process wants approved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, served
from tests.support.forked import Forked

CLERK = """
import asyncio, sys

import shoal

async def main():
    async with shoal.connect(sys.argv[1]) as store:
        crew = shoal.Crew(store, "office")

        @crew.agent("clerk", ttl=10)
        async def clerk(ctx):
            if "draft" not in ctx.state:
                await ctx.thread.request_approval("please read the draft", by=ctx.name)
                await ctx.checkpoint({"draft": "You owe 120."})
            await ctx.thread.ready()
            draft = ctx.state["draft"]
            await ctx.thread.step("send", call=lambda: print("sent", draft, flush=True))
            await ctx.checkpoint({"draft": draft, "sent": True})

        await crew.run(name="m", until_finished=True)

asyncio.run(main())
"""


def shoal(url: str, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--space", "office", "--url", url])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def status(url: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["crew", "status", "--json", "--space", "office", "--url", url])
    if result.exit_code:
        return "", ""
    [agent] = json.loads(result.stdout)["agents"]
    return agent["state"], agent["reason"]


@pytest.mark.answers("agents-have-one-driver")
async def test_a_draft_is_corrected_and_approved_by_commands(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        process = Forked(["-c", CLERK, url])
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                while await asyncio.to_thread(status, url) != ("waiting", "approval: please read the draft"):
                    await asyncio.sleep(0.2)
                while 'thread "clerk-1"' in await asyncio.to_thread(shoal, url, "lease", "list"):
                    await asyncio.sleep(0.2)
                assert "clerk-1" in await asyncio.to_thread(shoal, url, "threads", "--status", "waiting")
                await asyncio.to_thread(shoal, url, "edit", "clerk-1", '{"draft": "You owe 12."}', "--by", "ana")
                await asyncio.to_thread(shoal, url, "approve", "clerk-1", "--by", "ana")
                assert await asyncio.to_thread(process.wait) == 0
            assert process.stdout is not None
            assert process.stdout.read() == "sent You owe 12.\n"
            shown = await asyncio.to_thread(shoal, url, "show", "clerk-1", "--json")
            assert json.loads(shown)["state"] == {"draft": "You owe 12.", "sent": True}
            audit = rows(await asyncio.to_thread(shoal, url, "audit", "thread", "clerk-1", "--json"))
            assert [row["by"] for row in audit if row["kind"] == "checkpoint"] == ["clerk-1", "ana", "clerk-1"]
            assert await asyncio.to_thread(status, url) == ("finished", "")
            assert "clerk-1" in await asyncio.to_thread(shoal, url, "threads", "--status", "done")
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()
