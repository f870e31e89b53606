"""The subscribers that a change concerns are found without a look at the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.watching.feed import Audience
from shoal.protocol.requests import Follow, ObjectKind, Watch

names = st.text("ab", max_size=4)
subscriptions = st.builds(lambda prefix: Watch("crew", prefix=prefix), names) | st.builds(
    lambda name: Follow("crew", name), names
)


def concerns(subscription: Watch | Follow, kind: ObjectKind, name: str) -> bool:
    if isinstance(subscription, Follow):
        return kind == "document" and name == subscription.document
    return name.startswith(subscription.prefix)


@pytest.mark.answers("thousands-of-watchers-delay-a-writer")
@given(st.lists(subscriptions, max_size=12), st.data())
def test_the_audience_of_a_change_is_those_whose_prefix_or_document_it_has(
    joined: list[Watch | Follow], data: st.DataObject
) -> None:
    audience = Audience[int]()
    for member, subscription in enumerate(joined):
        audience.add(member, subscription)
    left = data.draw(st.sets(st.sampled_from(range(len(joined))))) if joined else set[int]()
    for member in sorted(left):
        audience.discard(member, joined[member])
    here = {member: subscription for member, subscription in enumerate(joined) if member not in left}
    assert bool(audience) == bool(here)
    assert sorted(audience) == sorted(here)
    kind: ObjectKind = data.draw(st.sampled_from(("document", "thread")))
    name = data.draw(names)
    found = audience.of(kind, name)
    assert sorted(found) == [member for member, subscription in here.items() if concerns(subscription, kind, name)]


def test_members_of_one_prefix_are_found_in_the_order_in_which_they_came() -> None:
    audience = Audience[str]()
    for member in ("c", "a", "b"):
        audience.add(member, Watch("crew", prefix="x"))
    assert audience.of("thread", "xy") == ["c", "a", "b"]
