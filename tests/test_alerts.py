"""The expressions of docs/OPERATIONS.md, read and evaluated by Prometheus's own `promtool`, over what real nodes print.

`make thorough` runs these. Debian's package `prometheus` has promtool: `apt-get install prometheus`.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import Started, free_addresses, ready, running

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="there is no promtool here; Debian's package prometheus has it"
    ),
]

TEXT = (Path(__file__).parent.parent / "docs" / "OPERATIONS.md").read_text()
_FOR = {"–": "0s", "min": "m", "h": "h", "d": "d"}


class Alert(NamedTuple):
    """A row of the table of alerts."""

    severity: str
    expression: str
    lasting: str  # As Prometheus writes it.


def alerts_of(page: str) -> list[Alert]:
    """The rows whose second column is an expression and no words."""
    rows = re.findall(r"^\| (page|ticket) \| `([^`|]+)` \| ([^|]+) \|", page, re.MULTILINE)
    return [Alert(severity, expression, _lasting(said)) for severity, expression, said in rows]


def _lasting(said: str) -> str:
    number, _, unit = said.strip().partition(" ")
    return number + _FOR[unit] if unit else _FOR[number]


def watched_of(page: str) -> list[str]:
    """The expressions of the table of what is watched without an alert."""
    table = page.split("To watch, without an alert:")[1].split("## ")[0]
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| (?![|-]).*\|$", table, re.MULTILINE)]
    found = [expression for cell in cells for expression in re.findall(r"`([^`]+)`", cell)]
    return [expression for expression in found if re.search(r"(?:shoal|process)_", expression)]


ALERTS = alerts_of(TEXT)
WATCHED = watched_of(TEXT)
FIRES = {
    "up == 0": ('up{instance="n1"}', "0", "1"),
    "shoal_ready == 0": ("shoal_ready", "0", "1"),
    "shoal_register_quorum == 0": ("shoal_register_quorum", "0", "1"),
    "increase(shoal_failed_repairs_total[10m]) > 0": ("shoal_failed_repairs_total", "0+1x90", "3"),
    "shoal_quarantined_operations > 0": ("shoal_quarantined_operations", "2", "0"),
    "shoal_peer_linked == 0": ('shoal_peer_linked{peer="n2:7400"}', "0", "1"),
    "shoal_peer_lag_seconds > 60": ('shoal_peer_lag_seconds{peer="n2:7400"}', "61", "60"),
    "shoal_learner == 1": ("shoal_learner", "1", "0"),
    "shoal_rows_differ > 0": ("shoal_rows_differ", "1", "0"),
    "increase(shoal_repaired_rows_total[1d]) > 0": ("shoal_repaired_rows_total", "0+1x90", "3"),
    "shoal_clocks_differ > 0": ("shoal_clocks_differ", "1", "0"),
    "shoal_member_disagreements > 0": ("shoal_member_disagreements", "1", "0"),
    # The clock of a rules test begins at 1970.
    "shoal_tls_expires_seconds - time() < 14 * 86400": ("shoal_tls_expires_seconds", "1200000", "9000000"),
    "shoal_tokens_ending > 0": ("shoal_tokens_ending", "1", "0"),
    'increase(shoal_refused_tokens_total{reason="expired"}[10m]) > 0': (
        'shoal_refused_tokens_total{reason="expired"}',
        "0+1x90",
        "3",
    ),
    "shoal_cluster_keys > 1": ("shoal_cluster_keys", "2", "1"),
    "shoal_cluster_key_trouble == 1": ("shoal_cluster_key_trouble", "1", "0"),
    "shoal_garbage_waits_for_owners > 0": ("shoal_garbage_waits_for_owners", "1", "0"),
}
"""For each alert a series, a value that lasts and fires it, and one that does not."""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of rules with all that the page says. JSON is YAML."""
    alerts = [
        {"alert": f"A{number}", "expr": alert.expression, "for": alert.lasting, "labels": {"severity": alert.severity}}
        for number, alert in enumerate(ALERTS)
    ]
    records = [{"record": f"shoal:watched:{number}", "expr": expression} for number, expression in enumerate(WATCHED)]
    file = tmp_path_factory.mktemp("rules") / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "shoal", "rules": [*alerts, *records]}]}))
    return file


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    ran = subprocess.run(["promtool", *arguments], input=given, capture_output=True, timeout=PATIENCE_S, check=False)
    said = (ran.stdout + ran.stderr).decode()
    assert ran.returncode == 0, said
    return said


def test_every_expression_is_one(rules: Path) -> None:
    assert f"{len(ALERTS) + len(WATCHED)} rules found" in promtool("check", "rules", rules)


def test_the_tables_are_read_whole() -> None:
    rows = re.findall(r"^\| (?:page|ticket) \|.*$", TEXT, re.MULTILINE)
    # One row needs a figure that the host's exporter has, under a name that is the operator's.
    assert [row.split(" | ")[1].split()[0] for row in rows if not alerts_of(row)] == ["free"]
    assert len(WATCHED) > 10


def test_each_alert_fires_when_it_should_and_not_before(rules: Path) -> None:
    assert {alert.expression for alert in ALERTS} == FIRES.keys()
    trials = []
    for number, alert in enumerate(ALERTS):
        series, fires, rests = FIRES[alert.expression]
        labels = dict(re.findall(r'(\w+)="([^"]*)"', series))
        for value, expected in ((fires, [{"exp_labels": {**labels, "severity": alert.severity}}]), (rests, [])):
            values = value if "x" in value else f"{value}x1600"
            trials.append(
                {
                    "interval": "1m",
                    "input_series": [{"series": series, "values": values}],
                    "alert_rule_test": [
                        {"eval_time": when, "alertname": f"A{number}", "exp_alerts": firing}
                        for when, firing in ((_after(alert), expected), *([("0m", [])] if alert.lasting != "0s" else []))
                    ],
                }
            )
    file = rules.with_name("trials.yml")
    file.write_text(json.dumps({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": trials}))
    assert "SUCCESS" in promtool("test", "rules", file)


def _after(alert: Alert) -> str:
    """A little later than it must have lasted."""
    minutes = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60}[alert.lasting[-1]] * int(alert.lasting[:-1])
    return f"{max(30, int(minutes) + 2)}m"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What /metrics says at one of two nodes with certificates, tokens and encryption, linked, after a write and a read."""
    directory = tmp_path_factory.mktemp("nodes")
    shoal = [sys.executable, "-m", "shoal.cli"]
    for command in (
        ["tls", "init", "tls", "--node", "n1", "--node", "n2"],
        ["token", "init", "tokens"],
        ["token", "create", "tokens", "prometheus", "--allow", "*:admin", "--lasts", "1h", "--out", "token"],
    ):
        subprocess.run([*shoal, *command], cwd=directory, env=clean_environment(), check=True, capture_output=True)
    (directory / "master").write_text("0123456789abcdef" * 4)
    (directory / "cluster.key").write_text("a secret of the nodes alone")
    for file in ("master", "cluster.key"):
        (directory / file).chmod(0o600)
    addresses = free_addresses(2)
    commands = []
    for name, address in zip(("n1", "n2"), addresses, strict=True):
        environment = {
            "SHOAL_JOIN": ",".join(addresses),
            "SHOAL_TLS_CA": str(directory / "tls" / "ca.pem"),
            "SHOAL_TLS_CERT": str(directory / "tls" / name / "cert.pem"),
            "SHOAL_TLS_KEY": str(directory / "tls" / name / "key.pem"),
            "SHOAL_TOKEN_KEYS": str(directory / "tokens" / "keys.json"),
            "SHOAL_CLUSTER_KEY_FILE": str(directory / "cluster.key"),
            "SHOAL_ENCRYPTION_KEY": f"file:{directory / 'master'}",
        }
        commands.append(Started(["serve", "--data", str(directory / name), "--listen", address], environment))
    token = (directory / "token").read_text().strip()
    with running(commands, directory) as urls:
        for url in urls:
            ready(url)
        _get(f"{urls[0]}/v1/spaces/crew/counters/n", token)
        ends_at = time.monotonic() + PATIENCE_S
        while "shoal_peer_lag_seconds{" not in (text := _get(f"{urls[0]}/metrics", token)):
            assert time.monotonic() < ends_at, text
            time.sleep(0.2)
        yield text


def _get(url: str, token: str) -> str:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("expression", [alert.expression for alert in ALERTS if alert.expression != "up == 0"] + WATCHED)
def test_a_real_node_prints_each_metric_of_an_expression(expression: str, printed: str) -> None:
    samples = set(re.findall(r"^(\w+)", printed, re.MULTILINE))
    named = set(re.findall(r"[a-z]+(?:_[a-z]+)+", re.sub(r"{.*?}", "", expression))) - {"histogram_quantile"}
    assert named
    assert named <= samples


def test_prometheus_finds_nothing_wrong_with_what_a_node_prints(printed: str) -> None:
    promtool("check", "metrics", given=printed.encode())
