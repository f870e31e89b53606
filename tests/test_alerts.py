"""Alerts, the board and the expressions of docs/OPERATIONS.md, as Prometheus itself reads them, over what real nodes print.

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
from typing import Any

import pytest

from shoal.node.conditions.of_node import Condition
from shoal.node.conditions.watcher import CONDITIONS
from tests import conditions
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import Started, free_addresses, ready, running

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="there is no promtool here; Debian's package prometheus has it"
    ),
]

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "OPERATIONS.md").read_text()
RULES = ROOT / "deploy" / "prometheus" / "shoal.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "shoal.json"


def watched_of(page: str) -> list[str]:
    """The expressions of the table of what is watched without an alert."""
    table = page.split("To watch, without an alert:")[1].split("## ")[0]
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| (?![|-]).*\|$", table, re.MULTILINE)]
    found = [expression for cell in cells for expression in re.findall(r"`([^`]+)`", cell)]
    return [expression for expression in found if re.search(r"(?:shoal|process)_", expression)]


ALERTS = [conditions.DOWN, *conditions.alerting(), conditions.UNSURE]
WATCHED = watched_of(TEXT)
DRAWN = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]]
NODE = {"job": "shoal", "instance": "n1:7400"}


def promtool(*arguments: str | Path, given: bytes = b"") -> str:
    ran = subprocess.run(["promtool", *arguments], input=given, capture_output=True, timeout=PATIENCE_S, check=False)
    said = (ran.stdout + ran.stderr).decode()
    assert ran.returncode == 0, said
    return said


def test_the_rules_are_those_of_the_table() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_all_that_is_watched_and_drawn_is_an_expression(tmp_path: Path) -> None:
    records = [{"record": f"shoal:watched:{number}", "expr": each} for number, each in enumerate(WATCHED + DRAWN)]
    file = tmp_path / "watched.yml"
    file.write_text(json.dumps({"groups": [{"name": "shoal", "rules": records}]}))
    assert f"{len(records)} rules found" in promtool("check", "rules", file)


def series_of(alert: Condition, *, fires: bool) -> list[dict[str, str]]:
    """What a node writes while the alert's condition stands, or does not."""
    labels = ",".join(f'{name}="{value}"' for name, value in NODE.items())
    if alert is conditions.DOWN:
        return [{"series": f"up{{{labels}}}", "values": f"{0 if fires else 1}x1600"}]
    if alert is conditions.UNSURE:
        known = list(CONDITIONS)[1:] if fires else list(CONDITIONS)
        return [{"series": f'shoal_condition{{condition="{name}",{labels}}}', "values": "0x1600"} for name in known]
    stands = {"series": f'shoal_condition{{condition="{alert.name}",{labels}}}', "values": f"{int(fires)}x1600"}
    begun = {"series": f'shoal_condition_begun_total{{condition="{alert.name}",{labels}}}', "values": "3x1600"}
    return [stands, begun]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_once_when_it_should_and_not_before(alert: Condition, tmp_path: Path) -> None:
    told = NODE if alert in (conditions.DOWN, conditions.UNSURE) else NODE | {"condition": alert.name}
    trials = []
    for fires, expected in ((True, [{"exp_labels": {**told, "severity": alert.severity}}]), (False, [])):
        before: list[tuple[str, list[Any]]] = [("0m", [])] if alert.lasts != "0s" else []
        checks = [
            {"eval_time": when, "alertname": conditions.alert_of(alert), "exp_alerts": found}
            for when, found in (*before, (_after(alert), expected))
        ]
        trials.append({"interval": "1m", "input_series": series_of(alert, fires=fires), "alert_rule_test": checks})
    tried(tmp_path, alert, trials)


def tried(place: Path, alert: Condition, trials: list[Any]) -> None:
    """Try the rule of this alert. Its texts are the table's; only labels are compared."""
    [rule] = re.findall(rf"( +- alert: {conditions.alert_of(alert)}\n(?: +(?:expr|for|labels): .*\n)+)", RULES.read_text())
    (place / RULES.name).write_text(f"groups:\n  - name: shoal\n    rules:\n{rule}")
    file = place / "trials.yml"
    file.write_text(json.dumps({"rule_files": [RULES.name], "evaluation_interval": "1m", "tests": trials}))
    assert "SUCCESS" in promtool("test", "rules", file)


def test_an_alert_of_what_passes_counts_how_often_it_began(tmp_path: Path) -> None:
    """It stood between two scrapes."""
    labels = ",".join(f'{name}="{value}"' for name, value in NODE.items())
    series = [
        {"series": f'shoal_condition{{condition="tokens-expired",{labels}}}', "values": "0x60"},
        {"series": f'shoal_condition_begun_total{{condition="tokens-expired",{labels}}}', "values": "0x10 1x50"},
    ]
    told = NODE | {"condition": "tokens-expired", "severity": "ticket"}
    fires = {"eval_time": "13m", "alertname": "ShoalTokensExpired", "exp_alerts": [{"exp_labels": told}]}
    rests = {"eval_time": "40m", "alertname": "ShoalTokensExpired", "exp_alerts": []}
    trial = {"interval": "1m", "input_series": series, "alert_rule_test": [fires, rests]}
    tried(tmp_path, CONDITIONS["tokens-expired"], [trial])


def _after(alert: Condition) -> str:
    """A little later than it must have lasted."""
    minutes = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60}[alert.lasts[-1]] * int(alert.lasts[:-1])
    return f"{max(30, int(minutes) + 2)}m"


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus here; Debian has it")
def test_a_prometheus_that_scrapes_a_node_fires_with_the_command(tmp_path: Path) -> None:
    """A member is away. The alerts wait for nothing here, so that it takes seconds."""
    address, missing, listen = free_addresses(3)
    rules = tmp_path / RULES.name
    rules.write_text(re.sub(r"for: \w+", "for: 0s", RULES.read_text()))
    scraping = {"job_name": "shoal", "static_configs": [{"targets": [address]}]}
    settings = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)]}
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({**settings, "scrape_configs": [scraping]}))
    serve = Started(["serve", "--data", str(tmp_path / "n1"), "--listen", address, "--join", f"{address},{missing}"], {})
    options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={listen}"]
    with (
        running([serve], tmp_path),
        (tmp_path / "prometheus.log").open("wb") as log,
        subprocess.Popen(["prometheus", *options], stdout=log, stderr=log) as prometheus,
    ):
        try:
            alert = _fired(f"http://{listen}/api/v1/alerts", "ShoalMemberAway")
        finally:
            prometheus.kill()
    assert alert["labels"]["severity"] == "ticket"
    assert alert["annotations"]["summary"] == f"A member is not reached, at {address}"
    assert "shoal cluster replace NAME NEW:PORT" in alert["annotations"]["command"]


def _fired(url: str, name: str) -> dict[str, Any]:
    ends_at = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < ends_at:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                found = json.load(answer)["data"]["alerts"]
        except OSError:
            found = []
        for alert in found:
            if alert["labels"]["alertname"] == name and alert["state"] == "firing":
                return dict(alert)
        time.sleep(0.2)
    raise AssertionError(f"{name} did not fire")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What /metrics says at one of two nodes with certificates, tokens and encryption, linked, after a write and a read."""
    directory = tmp_path_factory.mktemp("nodes")
    shoal = [sys.executable, "-m", "shoal"]
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


@pytest.mark.parametrize(
    "expression",
    [
        *WATCHED,
        *(each for each in DRAWN if "backup" not in each and "disk_full" not in each),
        "shoal_condition",
        "shoal_condition_begun_total",
    ],
)
def test_a_real_node_prints_each_metric_of_an_expression(expression: str, printed: str) -> None:
    samples = set(re.findall(r"^(\w+)", printed, re.MULTILINE))
    named = set(re.findall(r"[a-z]+(?:_[a-z]+)+", re.sub(r"{.*?}", "", expression))) - {"histogram_quantile"}
    assert named
    assert named <= samples


def test_prometheus_finds_nothing_wrong_with_what_a_node_prints(printed: str) -> None:
    promtool("check", "metrics", given=printed.encode())
