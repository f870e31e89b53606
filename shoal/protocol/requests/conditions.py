"""The conditions of a node: what is wrong with it and its cluster now, and the command that mends it.

The table of all conditions is in `shoal.node.conditions`, and as a page in docs/CONDITIONS.md.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, operation

__all__ = ["ConditionsView", "ReadConditions", "Severity", "StandingCondition"]

Severity = Literal["page", "ticket", "note"]
"""`page`: users feel it, or the last copy is in danger. `ticket`: somebody has to act, by day. `note`: nobody has to."""


@operation(family="cluster", http=Http("GET", "/cluster/conditions", "What is wrong with a node, and how to mend it"))
class ReadConditions(Read["ConditionsView"], array_like=True, frozen=True, tag="conditions"):
    """Look at a node, and read which conditions of the table are true of it now."""


class StandingCondition(Struct, array_like=True, frozen=True):
    """A condition that is true now."""

    name: str  # As in the table (docs/CONDITIONS.md).
    severity: Severity  # How soon somebody has to act.
    says: str  # What is so at this node, as a sentence.
    means: str  # What users feel, or will.
    mends: str  # The command that mends it. URL and DIR stand for the node's address and directory.
    page: str  # Where it is explained, such as `OPERATIONS.md#a-disk-is-full`.
    since_ms: int  # When this node noticed it.
    about: str = ""  # The member, the space or the limit that it is about; empty: this node.


class ConditionsView(Reply, array_like=True, frozen=True, tag="conditions-view"):
    """The outcome of a node's look at itself and its cluster."""

    node: str  # The id of its directory, in hex.
    name: str  # The address by which its peers reach it.
    standing: list[StandingCondition]  # The worst first.
    looked: list[str]  # The names of the conditions of which it knows whether they are true.
    unknown: dict[str, str] = field(default_factory=dict)  # The others, each with the reason why that is not known.
    begun: dict[str, int] = field(default_factory=dict)  # How often each of the table began, since the node started.
