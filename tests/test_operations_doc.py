"""docs/OPERATIONS.md names metrics that a node prints and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from shoal.api.health import Metrics
from shoal.config import Config
from shoal.protocol.requests import ClusterView, ConditionsView, Member, QuotaView, ReadCounter
from shoal.protocol.requests.status import Quota
from tests.api.conftest import STATUS

TEXT = (Path(__file__).parent.parent / "docs" / "OPERATIONS.md").read_text()
QUOTA = {*Quota.__struct_fields__, *QuotaView.__struct_fields__}
"""Of a space, not of a node."""
NAMED = sorted(set(re.findall(r"\b(?:shoal|process)_[a-z_]+", TEXT)))


@pytest.fixture(scope="module")
def printed() -> set[str]:
    """The names of all samples that a node with a peer, TLS, tokens, a key and encryption prints."""
    status = msgspec.structs.replace(
        STATUS, tls_ends_ms=1, master_key="file", tokens_end_ms=1, cluster_keys=["a"], backup="current", disk_free_bytes=1
    )
    own = Member("n1:7400", status.node, "self", 3, 0, 0, 0, 0, 0, 0, "", {"aa": 3})
    peer = msgspec.structs.replace(own, name="n2:7400", state="linked", clock_ms=5)
    metrics = Metrics()
    metrics.lateness.observe(0.1)
    metrics.count(ReadCounter("crew", "hits"), "ok", 0.1)
    text = metrics.scrape(
        status, ClusterView("shoal", 2, 2, [own, peer], "d1", 0, [], 0), ConditionsView("ab", "n1:7400", [], [])
    ).decode()
    return set(re.findall(r"^(\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("name", NAMED)
def test_a_metric_that_the_page_names_exists(name: str, printed: set[str]) -> None:
    assert name in printed


def test_the_page_names_metrics() -> None:
    assert len(NAMED) > 10


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT)) - set(NAMED) - QUOTA))
def test_a_setting_that_the_page_names_exists(setting: str) -> None:
    assert hasattr(Config(), setting)
