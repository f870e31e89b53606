"""The board and the pages name metrics that a node prints, and slow requests are named by their ids."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import shoal
from shoal.api.health import EXEMPLAR_S, Metrics
from shoal.errors import InvalidInput
from shoal.logs.lines import of_request
from shoal.protocol.requests import ClusterView, ConditionsView, ReadCounter
from tests import metrics
from tests.api.conftest import STATUS

ROOT = Path(__file__).parent.parent
BOARD = json.loads((ROOT / "deploy" / "grafana" / "shoal.json").read_text())
DRAWN = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", DRAWN)
def test_a_metric_that_the_board_draws_exists(expression: str) -> None:
    found = set(re.findall(r"\b(?:shoal|process)_\w+", expression))
    assert found
    assert found <= metrics.names()


def scraped(counted: Metrics) -> str:
    view = ConditionsView("ab12", "n1:7400", [], [])
    return counted.scrape(STATUS, ClusterView("shoal", 1, 1, [], "", 0, [], 0), view, is_open=True).decode()


REPEATED = {"trouble", "failing", "waits", "quorum", "learner", "ending", "differ", "disagreements", "reached", "keys"}
"""Words of gauges that were once beside their conditions."""
MORE = {"shoal_rows_differ", "shoal_data_keys"}
"""They count what a condition does not."""


def test_no_gauge_repeats_a_condition() -> None:
    assert not {name for name in metrics.names() - MORE if name.rpartition("_")[2] in REPEATED}


@pytest.mark.parametrize("id", ["t-1", "x" * 128, None])
def test_a_slow_request_is_named_by_its_id_in_openmetrics(id: str | None) -> None:
    counted = Metrics()
    with of_request(id or ""):
        counted.count(ReadCounter("s", "c"), "ok", EXEMPLAR_S / 2)
        counted.count(ReadCounter("s", "c"), "ok", EXEMPLAR_S * 2)
    families = list(text_string_to_metric_families(scraped(counted)))  # type: ignore[no-untyped-call]
    exemplars = [sample.exemplar.labels for family in families for sample in family.samples if sample.exemplar]
    assert exemplars == ([{"request": "t-1"}] if id == "t-1" else [])


async def test_a_store_in_a_program_has_metrics_without_those_of_a_server(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").counter("n").add(1)
        text = await store.metrics()
    assert "\nshoal_operations_total 1.0\n" in text
    assert 'shoal_condition{condition="read-only"} 0.0' in text
    assert "shoal_requests_total" not in text
    assert "shoal_writes_pending" not in text, "it is not known here, so it is not told as 0"


async def test_values_come_again_and_again_and_end_with_the_store(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        counter, seen = store.space("crew").counter("n"), list[list[shoal.MetricSample]]()
        async for samples in store.watch_metrics(every=0.1):
            seen.append(samples)
            await counter.add(1)
            if len(seen) == 3:
                text = await store.metrics()
                await store.close()
    assert [[each.value for each in samples if each.name == "shoal_operations_total"] for samples in seen] == [[0], [1], [2]]
    assert shoal.MetricSample("shoal_condition", {"condition": "read-only"}, 0) in seen[0]
    assert {each.name for each in seen[2]} == set(re.findall(r"^(shoal_\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("every", [0, -1, 0.05, float("nan"), float("inf")])
async def test_a_pause_that_is_none_is_refused(tmp_path: Path, every: float) -> None:
    async with shoal.open(tmp_path / "state") as store:
        with pytest.raises(InvalidInput, match="every must be"):
            await anext(store.watch_metrics(every=every))


def test_a_program_that_blocks_has_them_too(tmp_path: Path) -> None:
    with shoal.sync.open(tmp_path / "state") as store:
        assert [each.value for each in next(iter(store.watch_metrics())) if each.name == "shoal_ready"] == [1]
