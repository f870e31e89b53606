"""What is read from a store: all of it, and a document's edits as a whole."""

from __future__ import annotations

import pytest

from shoal.protocol import requests
from simulation.judging.found import DAMAGED, LISTED, TOLD, find, numbers_in
from simulation.workload.random_agents import ROOT, SPACE
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

WHOLE = {ROOT: {"1": 1.0, "22": 22.0}, LISTED: [22.0, 1.0], TOLD: "1;22;"}


def test_a_document_with_every_edit_in_all_roots_is_whole() -> None:
    assert numbers_in(WHOLE) == [1, 22]


def test_a_document_may_have_the_map_alone() -> None:
    assert numbers_in({ROOT: {"1": 1.0}}) == [1]
    assert numbers_in({}) == []


@pytest.mark.parametrize("torn", [{ROOT: {"1": 1.0}}, {LISTED: [1.0, 22.0, 22.0]}, {TOLD: "1;2"}, {TOLD: "1;2x2;"}])
def test_an_edit_that_is_there_in_part_is_damage(torn: dict[str, object]) -> None:
    assert DAMAGED in numbers_in(WHOLE | torn)


async def test_everything_is_read_however_small_the_pages() -> None:
    async with Fleet("a", page_items_max=2) as fleet:
        session = fleet["a"].node.session()
        for number in range(5):
            await session.call(requests.Add(SPACE, f"counter-{number}", 1 + number))
        found = await find(session)
    assert found.counters == {f"counter-{number}": 1 + number for number in range(5)}
