"""What is remembered of objects is bounded, and what is in use is not forgotten."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from random import Random

import pytest

from shoal.node.catalog import Recent

MEMBERS_MAX = 8
MEMBERS = range(20)


@pytest.mark.parametrize("seed", range(50))
def test_it_holds_what_was_used_last_and_never_more_than_its_bound(seed: int) -> None:
    random = Random(seed)
    recent: Recent[int] = Recent(MEMBERS_MAX)
    used: OrderedDict[int, bool] = OrderedDict()  # In the order of the last use; whether it was not dropped since.
    for _ in range(200):
        member = random.choice(MEMBERS)
        match random.randrange(5):
            case 0:
                recent.drop(member)
                if member in used:
                    used[member] = False
            case 1 | 2:
                recent.put(member)
                used[member] = True
                used.move_to_end(member)
            case _:
                if member in recent:
                    assert used[member]
                    used.move_to_end(member)
        assert len(recent) <= MEMBERS_MAX
        # To ask is to use: a copy is asked.
        asked = deepcopy(recent)
        assert all(latest in asked for latest, stays in list(used.items())[-MEMBERS_MAX // 2 :] if stays)
