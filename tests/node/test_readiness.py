"""Whether a node serves, and what it tells of that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.errors import CatchingUp
from shoal.node.reads.cluster import Readiness


def readiness(**incarnation: Any) -> Readiness:
    own: Any = SimpleNamespace(outside=False, unproven=False, fence="", barred="")
    vars(own).update(incarnation)
    commit: Any = SimpleNamespace(failed="")
    replicas: Any = SimpleNamespace(refilling=True, awaited="it waits for b:7400. Start it.", learning=[], clock_wrong="")
    return Readiness(own, commit, replicas=replicas)


def test_one_that_waits_for_its_peers_tells_for_whom() -> None:
    waiting = readiness(unproven=True)
    assert not waiting.serves
    with pytest.raises(CatchingUp, match=r"it waits for b:7400\. Start it"):
        waiting.check(stale=False)
    assert waiting.told == ("refilling", "it waits for b:7400. Start it.; ")


def test_a_member_serves_though_it_reaches_nobody() -> None:
    member = readiness()
    assert member.serves
    member.check(stale=False)
