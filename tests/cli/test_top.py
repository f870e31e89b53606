"""`shoal top`: rates of two looks, and what is not known."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.cli.operating.top import Asked, Look, asked, by_space, cut, forecast, heads, told
from shoal.protocol.requests import ClusterView, Member, UsagePoint, UsageView
from tests.api.conftest import STATUS

HOUR = 3_600_000
OWN = Member("n1:7400", "a", "self", 5, 0, 0, 0, 0, 0, 0, "", {})
AWAY = msgspec.structs.replace(OWN, name="n2:7400", state="unreachable")
CLUSTER = ClusterView("shoal", 2, 2, [OWN, AWAY], "d", 0, [], 0)
NOW = 1_000 * HOUR
USAGE = UsageView(NOW, 1, False, "", 10, 100, 0, 0, 0, 0, 0, 0, 0, [], [], 0, [UsagePoint(NOW - 2 * HOUR, 0, 300, 0, 0)])


def figures(**counts: dict[str, int]) -> dict[str, Any]:
    quantiles = {"p50": 1.0, "p99": 2.0, "p999": 3.0}
    kinds = [{"kind": kind, "outcomes": outcomes, "ms": quantiles} for kind, outcomes in counts.items()]
    return {"kinds": kinds, "spaces": {"crew": sum(counts["add"].values())}, "late_ms": quantiles, "writes_pending": 4}


def look(at_s: float, found: dict[str, Any] | None, *, started_ms: int = 1) -> Look:
    return Look(at_s, msgspec.structs.replace(STATUS, started_ms=started_ms), CLUSTER, USAGE, found)


def test_rates_are_of_two_looks() -> None:
    before = look(10.0, figures(add={"ok": 100}, read={"ok": 7}))
    now = look(12.0, figures(add={"ok": 140, "no-quorum": 10}, read={"ok": 7}, save={"ok": 2}))
    assert asked(before, now) == [Asked("add", 25.0, 5.0, 1.0, 2.0), Asked("save", 1.0, 0.0, 1.0, 2.0)]
    assert by_space(before, now) == {"crew": 25.0}


def test_a_node_that_was_restarted_shows_no_rates() -> None:
    before, now = look(10.0, figures(add={"ok": 100})), look(12.0, figures(add={"ok": 1}), started_ms=2)
    assert (asked(before, now), by_space(before, now)) == (None, None)


def test_a_long_name_leaves_room_for_its_figures() -> None:
    """A space's name may have hundreds of letters."""
    assert cut("crew") == "crew"
    assert cut("L" * 32) == "L" * 32
    assert cut("L" * 255) == "L" * 31 + "…"


def test_unknown_is_not_zero() -> None:
    silent = look(1.0, None)
    assert (asked(silent, silent), told(silent, silent)["requests"], told(silent, silent)["late_ms"]) == (None, None, None)
    assert "late by unknown" in heads(silent)[1]
    unknown = silent._replace(usage=msgspec.structs.replace(USAGE, free_bytes=-1, points=[]))
    assert heads(unknown)[-1].endswith("free unknown")
    assert (told(unknown, unknown)["free_bytes"], told(unknown, unknown)["full_at_ms"]) == (None, None)


def test_the_heads_name_members_that_are_away_and_the_forecast() -> None:
    first, *_, last = heads(look(1.0, figures(add={"ok": 1})))
    assert "away: n2:7400 unreachable" in first
    assert "; full at " in last
    assert told(look(1.0, None), look(2.0, None))["full_at_ms"] == NOW + HOUR
    assert forecast(msgspec.structs.replace(USAGE, points=[])) == ""


def test_one_look_at_a_node_is_printed(url: str) -> None:
    done = CliRunner().invoke(app, ["top", "--once", "--every", "0.2", "--url", url], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "crew" in done.output
    found = json.loads(CliRunner().invoke(app, ["top", "--once", "--json", "--every", "0.2", "--url", url]).output)
    assert found["state"] == "ready"
    assert {"crew", "other"} <= {space["name"] for space in found["spaces"]}
    assert "read-usage" in {row["kind"] for row in found["requests"]}
