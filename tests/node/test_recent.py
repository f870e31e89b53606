"""What is remembered of objects is bounded, and what is in use is not forgotten."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from shoal.node.recent import Recent

MEMBERS_MAX = 8

steps = st.lists(st.tuples(st.sampled_from(["put", "ask", "drop"]), st.integers(0, 12)), max_size=200)


@given(steps)
def test_it_holds_what_was_used_last_and_never_more_than_its_bound(steps: list[tuple[str, int]]) -> None:
    recent: Recent[int] = Recent(MEMBERS_MAX)
    used: OrderedDict[int, None] = OrderedDict()  # Put and not dropped since, in the order of the last use.
    for act, member in steps:
        match act:
            case "put":
                recent.put(member)
                used[member] = None
                used.move_to_end(member)
            case "ask":
                if member in recent:
                    assert member in used
                    used.move_to_end(member)
            case "drop":
                recent.drop(member)
                used.pop(member, None)
        assert len(recent) <= MEMBERS_MAX
        for latest in list(used)[-MEMBERS_MAX // 2 :]:
            # Asked in that order it stays as it is: the last used one stays that.
            assert latest in recent
