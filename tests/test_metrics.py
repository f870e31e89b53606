"""The board and the pages name metrics that a node prints, and slow requests are named by their ids."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import shoal
from shoal.api.metrics import EXEMPLAR_S, Metrics
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
