"""A planner, three workers and a critic on three nodes share a blackboard, and never talk to each other.

    python examples/blackboard.py                                      # starts three nodes of its own
    python examples/blackboard.py http://n1:7400 http://n2:7400 …      # or uses yours

They research a small made-up web. What they share:

- who is here: the planner assigns tasks to the workers whose *presence* it sees;
- the plan, a *document*: tasks, who has done which, which are reviewed. Each of them holds a
  live mirror of it, and is woken by its changes;
- what a page costs, a *budget*: no page is read that is not paid for, and none twice;
- which pages were read, a *set*: whoever meets one of them again leaves it out;
- findings, memory *items* with an index: the critic searches for the doubtful ones, and adds
  tasks to the plan to have them confirmed.

No model is asked: what agents do is a function of what they find. So the end is known, and
`check` compares what each node shows with what one reader alone would have found.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import shoal
from shoal import Document, Space, Store
from shoal.demo.nodes import cluster
from shoal.errors import BudgetExhausted

SPACE = "crew"
WORKERS = ("ann", "bob", "cy")
PRICE, BUDGET = 2, 100
SURE = 0.5  # Findings with a lower sureness are doubtful.


class Page(NamedTuple):
    fact: str
    sureness: float
    links: tuple[str, ...] = ()
    source: str = ""  # Where a doubtful fact can be confirmed.


WEB = {
    "tea/": Page("tea is a plant", 0.9, ("tea/green", "tea/oolong", "water/")),
    "tea/green": Page("green tea is not oxidised", 0.8, ("tea/", "water/heat")),
    "tea/oolong": Page("oolong comes from the moon", 0.2, ("tea/green",), source="tea/oolong/origin"),
    "tea/oolong/origin": Page("oolong comes from Fujian", 0.9),
    "coffee/": Page("coffee is a seed", 0.9, ("coffee/roast", "water/")),
    "coffee/roast": Page("roasting takes minutes", 0.7, ("coffee/", "water/heat")),
    "cocoa/": Page("cocoa is a bean", 0.9, ("cocoa/myth", "water/heat")),
    "cocoa/myth": Page("cocoa was money", 0.4, ("cocoa/",), source="cocoa/money"),
    "cocoa/money": Page("the Aztecs paid with cocoa beans", 0.8),
    "water/": Page("water is the rest of it", 1.0, ("water/heat",)),
    "water/heat": Page("80 °C is enough for green tea", 0.6, ("water/",)),
}
TOPICS = ("tea", "coffee", "cocoa")


def topic_of(url: str) -> str:
    return url.split("/")[0]


# ── the agents ────────────────────────────────────────────────────────────────


async def planner(store: Store) -> None:
    space = store.space(SPACE)
    await space.presence.set({"name": "planner", "role": "planner"})
    await space.budget("pages").grant(BUDGET, key="the only grant")
    await space.items.index(("findings",), "sureness")
    here = await everybody(space)
    async with await space.document("plan", author="planner") as plan:
        board = Board(plan)
        for topic, name in zip(TOPICS, sorted(here), strict=True):
            # Workers on this plan must see what we saw: the grant and the index.
            plan.map("tasks")[topic] = {"do": "research", "url": f"{topic}/", "worker": name, "after": store.bookmark}
        await board.until(lambda: board.tasks.keys() == board.reviewed.keys())
        for bookmark in board.done.values():
            store.observe(bookmark)
        findings = await space.items.search(("findings",))
        plan.text("report").insert(0, "\n".join(sorted(item.value["fact"] for item in findings)))
        plan.map("state")["finished"] = True
        await plan.flush()


async def worker(store: Store, name: str) -> None:
    space = store.space(SPACE)
    await space.presence.set({"name": name, "role": "worker"})
    async with await space.document("plan", author=name) as plan:
        board = Board(plan)
        while await board.until(lambda: bool(board.waiting_for(name))):
            for id, task in board.waiting_for(name).items():
                store.observe(task["after"])
                await (research if task["do"] == "research" else confirm)(space, task["url"], name)
                # Another node may hear of this before it has the findings; with our bookmark its readers wait for them.
                plan.map("done")[id] = store.bookmark
                await plan.flush()


async def research(space: Space, start: str, name: str) -> None:
    waiting, seen = [start], space.set("seen")
    while waiting:
        url = waiting.pop(0)
        if await seen.contains(url):
            continue
        page = await read(space, url)
        await seen.add(url)
        await space.items.put(("findings", topic_of(url)), url, {"fact": page.fact, "sureness": page.sureness, "by": name})
        waiting += page.links


async def confirm(space: Space, url: str, name: str) -> None:
    source = WEB[url].source
    page = await read(space, source)
    await space.set("seen").add(source)
    await space.items.put(("findings", topic_of(url)), url, {"fact": page.fact, "sureness": page.sureness, "by": name})


async def read(space: Space, url: str) -> Page:
    """Pay for a page, once whoever reads it, and read it."""
    await space.budget("pages").spend(PRICE, key=url)
    return WEB[url]


async def critic(store: Store) -> None:
    space = store.space(SPACE)
    await space.presence.set({"name": "critic", "role": "critic"})
    async with await space.document("plan", author="critic") as plan:
        board = Board(plan)
        while await board.until(lambda: board.done.keys() > board.reviewed.keys()):
            for id in sorted(board.done.keys() - board.reviewed.keys()):
                store.observe(board.done[id])
                task = board.tasks[id]
                doubtful = await space.items.search(("findings", topic_of(task["url"])), filter={"sureness": {"$lt": SURE}})
                for item in doubtful:
                    plan.map("tasks")[f"confirm {item.key}"] = {
                        "do": "confirm",
                        "url": item.key,
                        "worker": task["worker"],
                        "after": board.done[id],
                    }
                plan.map("reviewed")[id] = "critic"


# ── the blackboard ────────────────────────────────────────────────────────────


async def everybody(space: Space) -> set[str]:
    """The workers, once all are here and the critic is."""
    here: dict[str, str] = {}
    async with aclosing(space.presence.changes()) as changes:
        async for change in changes:
            here[change.member.state["name"]] = change.member.state["role"]
            if {*WORKERS, "critic"} <= here.keys():
                break
    return {name for name, role in here.items() if role == "worker"}


class Board:
    """One agent's mirror of the plan."""

    def __init__(self, plan: Document) -> None:
        self._plan = plan
        self._changes = plan.changes()

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait until the plan is so, and return True; or until it is finished, and return False."""
        while not holds():
            if self._plan.map("state").get("finished"):
                return False
            await anext(self._changes)
        return True

    @property
    def tasks(self) -> dict[str, Any]:
        return self._shown("tasks")

    @property
    def done(self) -> dict[str, str]:
        """By task, the bookmark of who has done it."""
        return self._shown("done")

    @property
    def reviewed(self) -> dict[str, str]:
        return self._shown("reviewed")

    def waiting_for(self, name: str) -> dict[str, Any]:
        return {id: task for id, task in self.tasks.items() if task["worker"] == name and id not in self.done}

    def _shown(self, name: str) -> dict[str, Any]:
        return dict(self._plan.to_py().get(name, {}))


# ── the run, and what must come of it ─────────────────────────────────────────


async def run(urls: Sequence[str]) -> dict[str, Any]:
    """Let all of them work, each through one of the nodes, and return what every node shows in the end.

    Raises:
        AssertionError: a node shows something else than one reader alone would have found.
    """
    async with AsyncExitStack() as stack:
        opened = [shoal.connect(urls[place % len(urls)]) for place in range(len(WORKERS) + 2)]
        stores = [await stack.enter_async_context(connecting) for connecting in opened]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(planner(stores[0]))
            group.create_task(critic(stores[1]))
            for name, store in zip(WORKERS, stores[2:], strict=True):
                group.create_task(worker(store, name))
        shown: dict[str, Any] = {}
        for url in urls:
            async with shoal.connect(url) as reader:
                for store in stores:
                    reader.observe(store.bookmark)
                shown = await check(reader.space(SPACE))
        return shown


async def check(space: Space) -> dict[str, Any]:
    """What one node shows, held against what is known."""
    pages, facts = expected()
    found = {item.key: item.value["fact"] for item in await space.items.search(("findings",))}
    assert found == facts, f"findings: {found}"
    assert set(await space.set("seen").members()) == pages
    assert await space.items.search(("findings",), filter={"sureness": {"$lt": SURE}}) == []
    rights = await space.budget("pages").rights()
    assert rights.spent == PRICE * len(pages), f"{rights.spent} was spent on {len(pages)} pages"
    try:
        await space.budget("pages").spend(BUDGET)
        raise AssertionError("the budget was overspent")
    except BudgetExhausted:
        pass
    async with await space.document("plan") as plan:
        shown: dict[str, Any] = plan.to_py()
    assert shown["tasks"].keys() == shown["done"].keys() == shown["reviewed"].keys()
    assert shown["tasks"].keys() == {*TOPICS, "confirm tea/oolong", "confirm cocoa/myth"}
    assert shown["report"] == "\n".join(sorted(facts.values()))
    return shown


def expected() -> tuple[set[str], dict[str, str]]:
    """The pages that one reader would read, and what is known in the end by the page where it was found."""
    waiting, pages, facts = [f"{topic}/" for topic in TOPICS], set[str](), dict[str, str]()
    while waiting:
        url = waiting.pop()
        if url not in pages:
            page = WEB[url]
            pages.add(url)
            facts[url] = page.fact if page.sureness >= SURE else WEB[page.source].fact
            pages |= {page.source} if page.source else set()
            waiting += page.links
    return pages, facts


@asynccontextmanager
async def nodes(urls: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """These, or three of our own."""
    if urls:
        yield urls
        return
    with tempfile.TemporaryDirectory(prefix="shoal-blackboard-") as directory:
        async with cluster(Path(directory), size=3, name="blackboard", temporary=True) as started:
            yield [node.url for node in started]


async def main() -> None:
    async with nodes(sys.argv[1:]) as urls:
        shown = await run(urls)
        for id, task in sorted(shown["tasks"].items()):
            sys.stdout.write(f"{id}: done by {task['worker']}, who was asked to {task['do']} {task['url']}\n")
        sys.stdout.write(f"\nAll {len(urls)} nodes report:\n{shown['report']}\n")


if __name__ == "__main__":
    asyncio.run(main())
