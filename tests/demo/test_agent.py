"""An agent's replay is harmless, and it notices a store that went back in time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.demo.crew import DOCUMENT, SPACE, Agent, Figures, Rewound, thread_name
from shoal.demo.screen import judge, read_back

MODULES = ["a.py", "b.py"]
COUNTED = {"a.py": Figures(1, 10, 2, 1, 3, 1), "b.py": Figures(1, 20, 4, 0, 1, 5)}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path) as store:
        yield store


async def agent_at(space: Space) -> Agent:
    return Agent(0, space=space, document=await space.document(DOCUMENT), modules=MODULES)


async def test_a_module_that_is_recorded_again_by_another_life_is_there_once(store: Store) -> None:
    space = store.space(SPACE)
    for _ in range(2):  # The second life never looks where the first one was.
        agent = await agent_at(space)
        for module in MODULES:
            await agent.record(module, COUNTED[module])
    assert judge(COUNTED, {"store": await read_back(store, agents=1)}, agents=1) == []


async def test_an_agent_resumes_where_its_last_checkpoint_was_saved(store: Store) -> None:
    space = store.space(SPACE)
    first, second = await agent_at(space), await agent_at(space)
    await first.record("a.py", COUNTED["a.py"])
    await second.resume()
    assert (second.position, second.checkpoint) == (1, first.checkpoint)
    assert list(second.remaining) == ["b.py"]


async def test_an_agent_that_is_shown_less_than_was_acknowledged_says_so(store: Store) -> None:
    agent = await agent_at(store.space(SPACE))
    await agent.record("a.py", COUNTED["a.py"])
    elsewhere = Agent(0, space=store.space("empty"), document=await store.space("empty").document(DOCUMENT), modules=MODULES)
    agent._thread = elsewhere._thread  # A node that has nothing of it.
    with pytest.raises(Rewound, match="agent-1 had 1 modules acknowledged, and was then shown a checkpoint of 0"):
        await agent.resume()


async def test_a_module_whose_add_failed_is_not_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await agent_at(store.space(SPACE))

    async def fail(*_: object) -> None:
        raise shoal.errors.Disconnected("no node")

    monkeypatch.setattr(agent, "_add", fail)
    with pytest.raises(shoal.errors.Disconnected):
        await agent.record("a.py", COUNTED["a.py"])
    assert agent.position == 0
    assert await store.space(SPACE).thread(thread_name(0)).heads() == {}
