"""The table of conditions, and what an observation says of each.

Laws:
- A name is once in the table, and stays: alerts, logs and boards are keyed by it.
- Of an observation each condition is either known, true or not, or named as unknown with the reason.
- At most `SHOWN_MAX` findings of one condition are told; the last one says how many more there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.conditions import of_cluster, of_node
from shoal.node.conditions.observation import Condition, Finding, Observation, Unknown
from shoal.protocol.requests.status import Severity, StandingCondition
from shoal.records import NamedTuple

SHOWN_MAX = 8
APART = "this directory is of a member of a cluster, and was opened alone: ask the members with --url"

CONDITIONS: Mapping[str, Condition] = {each.name: each for each in (*of_cluster.CONDITIONS, *of_node.CONDITIONS)}
"""By their names, in the order in which they are told of."""

_ORDER: Mapping[Severity, int] = {"page": 0, "ticket": 1, "note": 2}


class Look(NamedTuple):
    """The conditions that an observation shows."""

    standing: tuple[StandingCondition, ...]  # The worst first; since when is not filled in.
    unknown: dict[str, str]  # Conditions of which it is not known whether they are true, with the reason.

    @property
    def looked(self) -> list[str]:
        """The names of the conditions of which it is known."""
        return [name for name in CONDITIONS if name not in self.unknown]


def look(seen: Observation) -> Look:
    """Look for each condition of the table."""
    standing: list[StandingCondition] = []
    unknown: dict[str, str] = {}
    for condition in CONDITIONS.values():
        if seen.apart and condition in of_cluster.CONDITIONS:
            unknown[condition.name] = APART
            continue
        found = list(condition.look(seen))
        findings = [each for each in found if isinstance(each, Finding)]
        whys = [each.why for each in found if isinstance(each, Unknown)]
        if whys and not findings:  # One that is true is known, whatever else is not.
            unknown[condition.name] = "; ".join(whys[:SHOWN_MAX])
        more = max(0, len(findings) - SHOWN_MAX)
        standing += [_standing(condition, finding, more=more) for finding in findings[:SHOWN_MAX]]
    standing.sort(key=lambda each: _ORDER[each.severity])
    return Look(tuple(standing), unknown)


def _standing(condition: Condition, finding: Finding, *, more: int) -> StandingCondition:
    return StandingCondition(
        condition.name,
        condition.severity,
        f"{finding.says} (and {more:,} more)" if more else finding.says,
        condition.means,
        condition.mends.replace("{about}", finding.about or "NAME"),
        condition.page,
        0,
        finding.about,
    )
