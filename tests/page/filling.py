"""What the page is tried with: threads that wait, are stuck and fork, conversations, shared objects, and what is hostile."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import aiohttp

import shoal
from shoal.client.store import Space
from shoal.errors import HeadMoved

SPACE = "crew"
SHARED = "views"  # Beside it: what the views of shared state and of comparing show.
MARKUP = "<img src=x onerror=\"document.title='struck'\"><script>document.title='struck'</script>"
BIDI = "\u202eelif\u202c txt.\u2067exe\u2069"
LONG = "a long text, " * 80_000  # About 1 MB.
# Real trajectories, where a machine has them: each file is JSON lines with `messages`.
DATA = Path(os.environ.get("SHOAL_PAGE_DATA", "/nowhere"))


async def fill(url: str, *, others: int = 40) -> None:
    """Fill the space `crew` of the store at `url`, with `others` threads that are well."""
    async with shoal.connect(url) as store:
        space = store.space(SPACE)
        await asyncio.gather(
            _ticket(space), _crawl(space), _planner(space), _failed(space), _hostile(space), _shared(space), _real(space)
        )
        for number in range(others):
            await space.thread(f"worker-{number:02}", author=f"agent-{number % 5}").save(
                {"step": number, "notes": ["began"]}, metadata={"tags": ["batch", f"shard-{number % 3}"], "score": number / 10}
            )


async def fill_shared(url: str, name: str) -> None:
    """Fill a space with what the views of shared state, work and runs show."""
    async with shoal.connect(url) as store:
        space = store.space(name)
        for each in ("plan", MARKUP):
            async with await space.document(each, author="ada") as document:
                document.text("notes").insert(0, f"# Plan\n\n{MARKUP}\n{BIDI}\n")
                document.map("limits")["retries"] = 3
        for each in ("goal", MARKUP):
            await space.register(each).set({"reach": MARKUP}, by=MARKUP)
        await space.counter("pages").add(41)
        await space.set("seen").add(MARKUP, BIDI, 7)
        await space.list("steps").push("read", {"do": MARKUP}, BIDI, "write")
        await space.budget("tokens").grant(1000)
        await space.budget("tokens").spend(250)
        for number in range(3):
            kind = "fact" if number else "guess"
            await space.items.put(("memory", "ana"), f"n{number}", {"kind": kind, "text": f"tea {number}{MARKUP}"})
        jobs = space.thread("jobs").worklist("pages")
        await jobs.add({f"page-{number}": {"depth": number} for number in range(3)}, attempts_max=1)
        claim = await jobs.claim()
        assert claim is not None
        await claim.fail("no answer in 30 s")
        for number in range(3):
            thread = space.thread(f"run-{number}", author="writer")
            for step in range(4):
                state = {"draft": step if step < 2 else step * (number + 1)}
                await thread.save(state, metadata={"tags": ["eval"], "score": step * (number + 1), "tokens": 100 * step})
        await space.map("limits").set(MARKUP, MARKUP)


async def disagree(url: str, name: str, register: str) -> None:
    """Two who do not know of each other set a register of a space."""
    place = f"{url}/v1/spaces/{name}/registers/{register}"
    async with aiohttp.ClientSession() as session:
        async with session.get(place) as answer:
            seen = (await answer.json())["context"]
        for value, by in (("Moon", "ana"), ("Mars", "bo")):
            async with session.put(place, json={"value": value, "context": seen, "by": by}) as answer:
                assert answer.status < 300, await answer.text()


def _call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}],
    }


async def _ticket(space: Space) -> None:
    thread = space.thread("ticket-7", author="agent")
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You settle billing tickets. Ask a person before you pay more than 100."},
        {"role": "user", "content": "I was charged twice for May. Please refund 120."},
    ]
    first = await thread.save({"messages": messages, "stage": "read"}, label="received", metadata={"tags": ["billing"]})
    messages += [
        _call(1, "find_invoices", customer="c-881", month="2026-05"),
        {"role": "tool", "tool_call_id": "call-1", "content": '[{"id": "i-1", "amount": 120}, {"id": "i-2", "amount": 120}]'},
    ]
    await thread.step("billing", key="billing-1", call=_billing)
    await thread.save({"messages": messages, "stage": "found", "invoices": ["i-1", "i-2"]}, metadata={"tags": ["billing"]})
    messages.append({"role": "assistant", "content": "Both invoices are for May. I would refund 120."})
    await thread.save(
        {"messages": messages, "stage": "asked", "invoices": ["i-1", "i-2"], "draft": "We refund 120 for the second invoice."},
        metadata={"tags": ["billing", "refund"]},
    )
    await thread.journal.append({"looked_at": "i-2"}, key="looked")
    await thread.branch("bolder", at=first.id)
    answered = {"messages": messages[:2], "stage": "answered", "draft": "We refund it at once."}
    await thread.save(answered, branch="bolder", parent=first.id, metadata={"tags": ["billing"]})
    await thread.request_approval("refund of 120?", by="agent")


async def _billing() -> dict[str, int]:
    await asyncio.sleep(0.05)
    return {"due": 120}


async def _crawl(space: Space) -> None:
    thread = space.thread("crawl-3", author="worker-2")
    await thread.save(
        {"url": "https://example.com/page/17", "seen": list(range(300)), "left": {"depth": 3, "hosts": ["example.com"]}}
    )

    async def dies() -> None:
        raise asyncio.CancelledError

    try:
        await thread.step("fetch", key="fetch-17", call=dies)
    except asyncio.CancelledError:
        return


async def _planner(space: Space) -> None:
    thread = space.thread("planner", author="worker-1")
    for number in range(30):
        await thread.save(
            {"plan": [f"step {each}" for each in range(number)], "at": number}, label="" if number % 10 else f"round-{number}"
        )
        if number % 5 == 0:
            await thread.journal.append({"round": number})
    await thread.pause("too dear", by="ana")


async def _failed(space: Space) -> None:
    thread = space.thread("import-9", author="worker-3")
    await thread.save({"rows": 1200})
    await thread.fail("the file ends in the middle of row 1,201")


async def _hostile(space: Space) -> None:
    for name in (MARKUP, BIDI, "a/b?c#d%2Fe", "x" * 300):
        thread = space.thread(name, author=MARKUP)
        await thread.save(
            {
                "messages": [{"role": "user", "content": MARKUP + BIDI}],
                MARKUP: {BIDI: MARKUP},
                "long": LONG if name == MARKUP else "short",
            },
            label=MARKUP if name == MARKUP else "",
            metadata={"tags": [MARKUP], "__proto__": {"polluted": True}},
        )
        await thread.journal.append({"text": MARKUP, "constructor": BIDI})
    await space.thread(MARKUP).request_approval(MARKUP + BIDI, by=BIDI)


async def _shared(space: Space) -> None:
    await space.counter("tokens").add(51_200)
    await space.register("goal").set(["reach", "Mars"])
    await space.set("seen").add("page-1", "page-2", MARKUP)
    await space.map("limits").set("retries", 3)
    await space.list("plan").push("write tests", {"do": "ship", "by": MARKUP}, "rest")
    await space.items.put(("memory", "ana"), "n1", {"kind": "fact", "text": "likes tea"})
    work = space.thread("planner").worklist("files")
    await work.add([f"file-{number}.txt" for number in range(12)])
    async for item in work.pending():
        await work.done(item, result={"lines": 12})
        break


async def _real(space: Space) -> None:
    for file in sorted(DATA.glob("*.jsonl.gz"))[:5]:
        with gzip.open(file, "rt") as lines:
            for number, line in zip(range(3), lines, strict=False):
                messages = json.loads(line)["messages"]
                thread = space.thread(f"{file.name.split('.')[0]}-{number}", author="replay")
                for end in range(2, len(messages) + 1, 4):
                    try:
                        await thread.save({"messages": messages[:end]}, metadata={"tags": ["real"]})
                    except HeadMoved:
                        return
