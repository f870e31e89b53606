"""What a mirror does when its node fails, refuses or is behind."""

from __future__ import annotations

import pytest

from shoal.errors import (
    BY_CODE,
    BookmarkLost,
    Disconnected,
    EditsRefused,
    InvalidInput,
    InvalidName,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    ReadOnly,
    RootConflict,
    SessionBehind,
    ShoalError,
    SlowConsumer,
    TooLarge,
)
from shoal.kinds.document.handle.mirror import EDITS_REFUSED_MAX
from shoal.kinds.document.state.live import EMPTY, LiveDocument
from shoal.protocol.requests import (
    Edit,
)
from tests.client.document.conftest import FakeSession, Mirror, settled, until

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("error", [OutcomeUnknown("?"), Disconnected("?"), Overloaded("?", retry_after_s=0.001)])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_broken_request_is_sent_again(session: FakeSession, mirror: Mirror, error: ShoalError, when: str) -> None:
    document = await mirror()
    document.text("t").insert(0, "a")
    await document.flush()
    getattr(session, when).append(error)
    document.text("t").insert(1, "b")
    await document.flush()
    assert session.live.to_py() == {"t": "ab"}


async def test_edits_that_could_not_be_sent_are_raised_once_and_sent_by_the_next_flush(
    session: FakeSession, mirror: Mirror
) -> None:
    document = await mirror()
    session.unreachable = True
    document.map("m")["a"] = 1
    with pytest.raises(Disconnected):
        await document.flush()
    document.map("m")["b"] = 2
    session.unreachable = False
    await document.flush()
    assert session.live.to_py() == {"m": {"a": 1, "b": 2}}


@pytest.mark.parametrize("error", [TooLarge("no"), RootConflict("no"), InvalidInput("no")])
async def test_a_refusal_is_raised_by_every_later_use(session: FakeSession, mirror: Mirror, error: ShoalError) -> None:
    document = await mirror()
    entries = document.map("m")
    session.before.append(error)
    entries["a"] = 1
    with pytest.raises(type(error)):
        await document.flush()
    with pytest.raises(type(error)):
        document.map("m")
    with pytest.raises(type(error)):
        entries["b"] = 2
    with pytest.raises(type(error)):
        await document.close()


async def test_a_refusal_is_not_swallowed_without_a_flush(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before.append(TooLarge("no"))
    document.map("m")["a"] = 1
    await settled()
    with pytest.raises(TooLarge):
        document.map("m")


async def test_a_node_that_reads_only_is_not_pressed(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before.append(ReadOnly("disk"))
    document.map("m")["a"] = 1
    with pytest.raises(ReadOnly):
        await document.flush()
    assert len(session.requests) == 1
    await document.flush()
    assert session.live.to_py() == {"m": {"a": 1}}


async def test_a_node_that_lost_what_it_acknowledged_is_sent_everything(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror(durability="memory")
    document.text("t").insert(0, "a")
    await document.flush()
    session.live = LiveDocument(bytes_max=1 << 24, roots_max=16, roots={"t": "text"})
    document.text("t").insert(1, "b")
    await document.flush()
    assert session.live.to_py() == {"t": "ab"}


async def test_an_update_that_stays_early_is_a_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before += [NotReady("early")] * 10_000
    document.text("t").insert(0, "a")
    with pytest.raises(EditsRefused, match=r"early.*the last edit made here is not written.*open the document again"):
        await document.flush()
    assert len(session.requests) == 1 + EDITS_REFUSED_MAX
    assert document.to_py() == {"t": "a"}
    with pytest.raises(EditsRefused):
        document.map("m")
    with pytest.raises(EditsRefused):
        await document.close()
    session.before.clear()
    anew = await mirror()
    anew.text("t").insert(0, "b")
    await anew.flush()
    assert session.live.to_py() == {"t": "b"}


PERMANENT = [error for error in BY_CODE.values() if not error.retryable and not issubclass(error, BookmarkLost)]


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: error.__name__)
async def test_a_permanent_refusal_is_told_and_ends_the_mirror(
    session: FakeSession, mirror: Mirror, error: type[ShoalError]
) -> None:
    document = await mirror()
    session.before += [error("No. Nothing was written.")] * 10_000
    document.map("m")["a"] = 1
    document.map("m")["b"] = 2
    with pytest.raises(error, match="the last 2 edits made here are not written"):
        await document.flush()
    with pytest.raises(error):
        await document.close()
    session.before.clear()
    anew = await mirror()
    anew.map("m")["c"] = 3
    await anew.close()
    assert session.live.to_py() == {"m": {"c": 3}}


async def test_a_node_that_lacks_what_others_edited_is_sent_that_too(session: FakeSession, mirror: Mirror) -> None:
    """It was seen through a node that died before it had passed it on."""
    document, other = await mirror(), await mirror()
    other.text("t").insert(0, "theirs ")
    await other.flush()
    await until(lambda: bool(document.to_py()))
    session.live = LiveDocument(bytes_max=1 << 24, roots_max=16)
    document.text("t").insert(len("theirs "), "ours")
    await document.flush()
    assert session.live.to_py() == {"t": "theirs ours"}
    assert session.requests[-1].roots == {"t": "text"}


@pytest.mark.parametrize("behind", [SessionBehind("behind"), BookmarkLost("lost")])
async def test_a_node_that_is_behind_is_brought_what_it_lacks_and_not_waited_for(
    session: FakeSession, mirror: Mirror, behind: ShoalError
) -> None:
    document = await mirror()
    session.before.append(behind)
    document.text("t").insert(0, "a")
    await document.flush()
    assert session.stale == [False, True]
    assert session.follows[-1].stale
    assert session.live.to_py() == {"t": "a"}


async def test_a_node_that_died_while_it_was_asked_what_it_lacks_is_no_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    session.before += [NotReady("early"), Disconnected("gone"), NotReady("early")]
    document.text("t").insert(0, "a")
    await document.flush()
    assert session.live.to_py() == {"t": "a"}


async def test_only_the_first_following_waits_for_what_the_bookmark_names(session: FakeSession, mirror: Mirror) -> None:
    await mirror()
    session.push(Disconnected("gone"))
    await until(lambda: len(session.follows) == 2)
    assert [follow.stale for follow in session.follows] == [False, True]


@pytest.mark.parametrize("cut", [SlowConsumer("slow"), Disconnected("gone")])
async def test_a_subscription_that_was_cut_is_taken_up_where_it_ended(
    session: FakeSession, mirror: Mirror, cut: ShoalError
) -> None:
    document, other = await mirror(), await mirror()
    other.map("m")["a"] = 1
    await other.flush()
    await until(lambda: bool(document.to_py()))
    session.push(cut)
    await until(lambda: len(session.follows) == 4)
    other.map("m")["b"] = 2
    await other.flush()
    await until(lambda: bool(document.to_py() == {"m": {"a": 1, "b": 2}}))
    assert session.follows[2].state == session.follows[3].state != session.follows[0].state


async def test_a_node_that_cannot_be_reached_fails_the_opening(session: FakeSession, mirror: Mirror) -> None:
    session.unreachable = True
    with pytest.raises(Disconnected):
        await mirror()


async def test_a_root_of_another_kind_is_refused_here(session: FakeSession, mirror: Mirror) -> None:
    one = await mirror()
    one.map("m")["a"] = 1
    await one.flush()
    other = await mirror()
    for open_root in (one.text, one.array, other.text):
        with pytest.raises(RootConflict):
            open_root("m")
    with pytest.raises(InvalidName):
        one.map("")


async def test_a_root_that_another_declared_differently_first_is_a_refusal(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    document.map("r")
    session.push(Edit(EMPTY, {"r": "text"}))
    await settled()
    with pytest.raises(RootConflict):
        await document.flush()


async def test_an_unreadable_push_is_an_error_not_silence(session: FakeSession, mirror: Mirror) -> None:
    document = await mirror()
    changes = document.changes()
    session.push(Edit(b"garbage", {}))
    with pytest.raises(InvalidInput):
        await anext(changes)
    with pytest.raises(InvalidInput):
        await document.flush()
