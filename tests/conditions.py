"""What follows from the table of conditions: docs/CONDITIONS.md and deploy/prometheus/shoal.rules.yml.

`tests.reference` writes both.
"""

from __future__ import annotations

import json

from shoal.node.conditions.of_node import Condition
from shoal.node.conditions.watcher import CONDITIONS

PAGE = """# Conditions

`python -m tests.reference` generates this page from the table in `shoal/node/conditions`.

A node looks at itself and its cluster every 5 s, and finds which of these conditions stand. Everything that tells of trouble
reads that: `shoal doctor` (which asks all members), `shoal status`, `/readyz` (names only), `GET /v1/cluster/conditions`,
the log (one line when a condition has stood for 4 s, one when it is over), the metric `shoal_condition`, the alerts in
[deploy/prometheus](../deploy/prometheus/shoal.rules.yml), and *Cluster* in the [page](PAGE.md).

```sh
shoal doctor --url http://127.0.0.1:7400
```

A **page** is what users feel, or what may lose the last copy. A **ticket** is to be done in the daytime. A **note** needs
nobody. In commands, URL is a node's address, DIR a node's directory, and NAME what the condition is about: a member, a space
or a bound. An alert fires when its condition has stood for the time in the last column.

| condition | | it is noticed when | what users feel | the command that mends it | alert after |
|---|---|---|---|---|---|
"""

RULES = """# Alerts of Shoal. `python -m tests.reference` generates this file from the table in shoal/node/conditions.
# Each has what it means for users and the command that mends it; docs/CONDITIONS.md has all of them.
# The job that scrapes the nodes has "shoal" in its name.
groups:
  - name: shoal
    rules:
"""

DOWN = Condition(
    "down",
    "page",
    "1m",
    "A node does not answer",
    "Users do not feel one node of three. The loss of another one stops what needs a majority.",
    "shoal serve --data DIR   # on its machine",
    "OPERATIONS.md#a-node-is-lost",
    "Prometheus cannot scrape it",
    lambda seen: iter(()),
)
UNSURE = Condition(
    "unsure",
    "ticket",
    "1h",
    "A node cannot tell whether all is well",
    "Nothing yet: of some conditions the node does not know whether they stand.",
    "shoal doctor --url URL   # names what is not known, and why",
    "CONDITIONS.md",
    "some conditions are not among its metrics",
    lambda seen: iter(()),
)
"""What Prometheus alone can tell."""


def page() -> str:
    """docs/CONDITIONS.md."""
    return PAGE + "".join(map(_row, CONDITIONS.values()))


def _row(condition: Condition) -> str:
    command, _, comment = condition.mends.replace("{about}", "NAME").partition("   # ")
    mends = f"`{command}`" + (f" ({comment})" if comment else "")
    after = "–" if condition.severity == "note" else "at once" if condition.lasts == "0s" else condition.lasts
    name = f'<a id="{condition.name}"></a>`{condition.name}`: {condition.title}'
    cells = (name, f"[{condition.severity}]({condition.page})", condition.noticed, condition.means, mends, after)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def alerting() -> list[Condition]:
    """The conditions that have an alert."""
    return [condition for condition in CONDITIONS.values() if condition.severity != "note"]


def alert_of(condition: Condition) -> str:
    """The name of its alert."""
    return "Shoal" + "".join(map(str.title, condition.name.split("-")))


def expression_of(condition: Condition) -> str:
    """When its alert fires, if that lasts."""
    if condition is DOWN:
        return 'up{job=~".*shoal.*"} == 0'
    if condition is UNSURE:
        return f"count by (job, instance) (shoal_condition) < {len(CONDITIONS)}"
    stands = f'max by (job, instance, condition) (shoal_condition{{condition="{condition.name}"}}) == 1'
    if not condition.passes:
        return stands
    began = f'increase(shoal_condition_begun_total{{condition="{condition.name}"}}[10m])'
    return f"{stands} or max by (job, instance, condition) ({began}) > 0"


def rules() -> str:
    """deploy/prometheus/shoal.rules.yml."""
    return RULES + "".join(map(_alert, (DOWN, *alerting(), UNSURE)))


def _alert(condition: Condition) -> str:
    told = {
        "summary": f"{condition.title}, at {{{{ $labels.instance }}}}",
        "description": condition.means,
        "command": condition.mends.replace("{about}", "NAME"),
        "runbook": f"docs/{condition.page}",
    }
    lines = [
        f"      - alert: {alert_of(condition)}",
        f"        expr: {json.dumps(expression_of(condition))}",
        f"        for: {condition.lasts}",
        f"        labels: {{severity: {condition.severity}}}",
        "        annotations:",
        *(f"          {name}: {json.dumps(text, ensure_ascii=False)}" for name, text in told.items()),
    ]
    return "\n".join(lines) + "\n"
