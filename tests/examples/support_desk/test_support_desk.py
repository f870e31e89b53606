"""The support desk ends as it should: with a person in a browser, and whatever is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import shoal
from examples.support_desk import __main__ as program
from examples.support_desk.desk import TICKETS
from tests.end_to_end.browser import Page, browser, chromium, needs_chromium
from tests.examples.support_desk.running import PAID, ROOT, TOLD, desk

MOMENTS = {
    "triage, after it has asked": ("triage", "triage: asks: Refund 120"),
    "answer, while it pays": ("answer", "answer: pays for order 17"),
    "note, between two notes": ("note", "note: noted on ticket-2"),
    "person, between two decisions": ("person", "person: refu"),
    "node, while a question is open": ("node", "triage: asks: Refund"),
    "node, while it is paid": ("node", "answer: pays for order 19"),
}


async def clicked(page: Page, ticket: str, decision: str) -> None:
    """Wait for the ticket's question, and decide."""
    await page.run(
        f"""
        const buttons = () => [...document.querySelectorAll('#{ticket} button')]
        const find = () => buttons().find((button) => button.textContent === '{decision}')
        while (!find()) await new Promise((resolve) => setTimeout(resolve, 20))
        find().click()
        """
    )


async def shown(page: Page, ticket: str, text: str) -> None:
    """Wait until the page shows this of a ticket."""
    await page.run(
        f"""
        while (!document.getElementById('{ticket}')?.textContent.includes('{text}')) {{
          await new Promise((resolve) => setTimeout(resolve, 20))
        }}
        """
    )


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Page]:
    """A page in a browser of its own, which is killed at the end."""
    with chromium(directory) as address:
        async with browser(address) as page:
            yield page


@needs_chromium
async def test_a_person_decides_in_a_browser_across_a_killed_browser_and_a_killed_node(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("kills", 2)
    data = tmp_path / "desk"
    async with desk(data) as running:
        origin = (await running.until("The desk is open at ")).split()[-1]
        await running.until("note: noted on ticket-4")
        async with started(tmp_path / "first") as page:
            await page.open(origin)
            await shown(page, "ticket-4", "Refund 900 € for order 20?")
            await shown(page, "ticket-2", "Answered: Dear Ben")
            await clicked(page, "ticket-4", "refuse")
            await running.until("triage: ana says: refuse")
        async with started(tmp_path / "second") as page:
            await page.open(origin)
            await shown(page, "ticket-1", "Refund 120 € for order 17?")
            await running.kill("node")
            await clicked(page, "ticket-1", "refund")
            await shown(page, "ticket-1", "Answered: Dear Ada, you get your 120 € back.")
        assert await running.ended() == [*TOLD, "The shop has paid: 12 € for order 19, 120 € for order 17"]
        assert running.paid() == PAID
    assert await asked_and_answered(data) == {"ticket-1": ["triage", "ana"], "ticket-4": ["triage", "ana"]}
    async with shoal.open(data / "state") as store:
        by = {entry.by for entry in await store.space("desk").thread("ticket-1").audit()}
        assert {"Ada", "triage", "carla", "ana", "answer"} <= by


async def asked_and_answered(data: Path) -> dict[str, list[str]]:
    """Who asked for approval of a ticket, and who approved, in this order."""
    found: dict[str, list[str]] = {}
    async with shoal.open(data / "state") as store:
        for name in TICKETS:
            async for event in store.space("desk").thread(name).journal.read():
                if event.event.get("status") in ("waiting", "running"):
                    found.setdefault(name, []).append(event.event["by"])
    return found


@pytest.mark.answers("agent-is-killed-while-it-pays")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_killed_runs_finish_each_refund_and_note_once(
    moment: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("kills", 1)
    party, line = MOMENTS[moment]
    async with desk(tmp_path / "desk", "--by-itself") as running:
        await running.until(line)
        await running.kill(party)
        await running.ended()
        assert sorted(line for line in running.lines if line in TOLD) == sorted(TOLD)
        assert running.paid() == PAID
    assert await asked_and_answered(tmp_path / "desk") == {"ticket-1": ["triage", "ana"], "ticket-4": ["triage", "ana"]}


@pytest.mark.answers("agent-is-killed-while-it-pays")
async def test_an_agent_that_was_killed_after_it_paid_does_not_pay_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("kills", 1)
    async with desk(tmp_path / "desk", "--by-itself") as running:
        await running.until("answer: pays for order 19")
        await running.until_paid(19)
        await running.kill("answer")
        await running.until("answer: was killed while it paid for order 19: the shop has paid")
        await running.ended()
        assert running.paid() == PAID


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_a_desk_that_was_left_in_the_middle_is_taken_up_where_it_was(how: signal.Signals, tmp_path: Path) -> None:
    async with desk(tmp_path / "desk", how=how) as running:
        await running.until("note: noted on ticket-4")
        await running.until("triage: asks: Refund", times=2)
    async with desk(tmp_path / "desk", "--by-itself") as running:
        assert (await running.ended())[:-1] == TOLD
        assert [line for line in running.lines if "asks" in line] == []
        assert running.paid() == PAID


async def test_a_party_that_only_fails_ends_the_desk_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "LIVES_MAX", 2)
    with pytest.raises(RuntimeError, match="wrong has ended 2 times"):
        await program.Party("wrong", "no_such_module").run()


def test_missing_programs_are_named_before_anything_starts(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.modules['agents'] = None; sys.argv[1:] = ['--data', sys.argv[1]]; " + (
        "runpy.run_module('examples.support_desk', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "desk")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "openai-agents is not installed. Run: pip install '.[langgraph,openai,mcp]' langgraph\n"
    assert not (tmp_path / "desk").exists()


async def test_a_port_is_free() -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", program.free_port())
    server.close()
    await server.wait_closed()
