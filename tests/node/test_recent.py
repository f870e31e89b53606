"""What is remembered of objects is bounded, and what is in use is not forgotten."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from shoal.node.catalog import Recent

MEMBERS_MAX = 8
MEMBERS = range(20)


def repeated(acts: list[tuple[str, int]]) -> Recent[int]:
    """One to which the same was done: to ask is to use, so that a copy is asked."""
    recent: Recent[int] = Recent(MEMBERS_MAX)
    for act, member in acts:
        if act == "ask":
            assert (member in recent) is recent.holds(member)
        else:
            getattr(recent, act)(member)
    return recent


@pytest.mark.parametrize("seed", range(50))
def test_it_holds_what_was_used_last_and_never_more_than_its_bound(seed: int) -> None:
    random = Random(seed)
    recent: Recent[int] = Recent(MEMBERS_MAX)
    acts: list[tuple[str, int]] = []
    used: OrderedDict[int, bool] = OrderedDict()  # In the order of the last use; whether it was not dropped since.
    for _ in range(200):
        member = random.choice(MEMBERS)
        match random.randrange(5):
            case 0:
                recent.drop(member)
                acts.append(("drop", member))
                if member in used:
                    used[member] = False
            case 1 | 2:
                recent.put(member)
                acts.append(("put", member))
                used[member] = True
                used.move_to_end(member)
            case _:
                acts.append(("ask", member))
                if member in recent:
                    assert used[member]
                    used.move_to_end(member)
        assert len(recent) <= MEMBERS_MAX
        asked = repeated(acts)
        assert all(latest in asked for latest, stays in list(used.items())[-MEMBERS_MAX // 2 :] if stays)
