"""`shoal presence`: who is connected, in a space or with a document."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import shoal
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.cli.test_commands import CREW
from tests.cli.test_commands import shoal as command
from tests.support import forked


async def said(*arguments: str) -> tuple[str, str]:
    """What the command prints, in a process of its own: who is present stays so meanwhile."""
    words = ["-m", "shoal", "presence", *arguments, *CREW]
    ended = await asyncio.to_thread(forked.run, words, clean_environment(), timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


async def test_presence_in_spaces_and_documents_is_told(url: str) -> None:
    async with shoal.connect(url) as store:
        space = store.space("crew")
        await space.presence.set({"role": "planner"})
        async with await space.document("plan") as document:
            await document.presence.set({"user": {"name": "ana"}})
            shown, _ = await said("--url", url)
            assert shown == f'{space.presence.id}  {{"role": "planner"}}\n'
            shown, _ = await said("--url", url, "--document", "plan", "--json")
            assert json.loads(shown) == {"id": document.presence.id, "state": {"user": {"name": "ana"}}}
    shown, beside = await said("--url", url, "--document", "plan")
    assert (shown, beside) == ("", "shoal: nobody is here: document 'plan' of space 'crew'.\n")


async def test_joins_changes_and_leaves_are_told_at_once(url: str) -> None:
    watching = await forked.create_subprocess_exec(
        *(sys.executable, "-m", "shoal", "presence", "--follow", "--json", "--url", url, "--space", "watched"),
        env=clean_environment(),
        stdout=PIPE,
    )
    assert watching.stdout is not None
    told: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        async with shoal.connect(url) as store:
            presence = store.space("watched").presence
            for step in (1, 2):
                await presence.set({"step": step})
                told.append(json.loads(await watching.stdout.readline()))
        told.append(json.loads(await watching.stdout.readline()))
        watching.terminate()
        await watching.wait()
    assert [(one["change"], one["state"]["step"]) for one in told] == [("joined", 1), ("changed", 2), ("left", 2)]
    assert {one["id"] for one in told} == {presence.id}


def test_a_directory_has_nobody_and_says_why(filled: Path) -> None:
    result = command("presence", "--data", str(filled), *CREW)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "shoal: presence is known only to a running node, not to a directory. Nothing was read. Give --url URL.\n"
    )
