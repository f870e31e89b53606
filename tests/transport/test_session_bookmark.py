"""What a remote session has seen: it tells each node before it asks, and lets go what no node knows any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import BookmarkLost
from shoal.protocol.bookmark import Bookmark, Sight
from shoal.protocol.frames import CallFrame, ObserveFrame, encode_error, encode_push, encode_reply
from shoal.protocol.requests import Change, CounterValue, Watch
from shoal.transport.session import RemoteSession
from tests.transport.calls import READ, counted
from tests.transport.conftest import Connect, Peer

A = Origin(b"a" * 16)
SEEN, OLDER = VersionVector({A: 3}), VersionVector({A: 2})


def _bookmark(partition: int) -> Bookmark:
    bookmark = Bookmark()
    bookmark.note(partition, SEEN)
    return bookmark


async def test_the_bookmark_has_a_reply_in_time(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7), [Sight(5, SEEN.pack())])
    await session.call(READ)
    assert session.bookmark.vector(5) == SEEN
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7), [Sight(5, OLDER.pack(), replaced=True)])
    await session.call(READ, stale=True)
    assert session.bookmark.vector(5) == OLDER
    assert [(await peer.next_call()).stale, (await peer.next_call()).stale] == [False, True]


async def test_another_node_is_told_what_was_seen_before_it_is_asked(peer: Peer, other_peer: Peer, connect: Connect) -> None:
    session = connect(f"{peer.url},{other_peer.url}")
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7), [Sight(5, SEEN.pack())])
    other_peer.answer = counted
    await session.call(READ)
    await peer.stop()
    await session.call(READ)
    assert other_peer.frames.get_nowait() == ObserveFrame(session.bookmark.pack())
    await other_peer.next_call()


async def test_the_bookmark_has_a_push_in_time(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url)

    async def push() -> None:
        id = await peer.next_id()
        change = Change("s", "counter", "c", "add", "", 1, 1)
        await peer.send(encode_reply(id, None), encode_push(id, change, [Sight(5, SEEN.pack())]))

    pushing = asyncio.create_task(push())
    async with session.subscribe(Watch("s")) as pushes:
        await anext(pushes)
        assert session.bookmark.vector(5) == SEEN
    await pushing


async def test_a_bookmark_that_was_joined_is_told_once_and_before_the_next_request(peer: Peer, connect: Connect) -> None:
    session = connect(peer.url, bookmark=_bookmark(1))
    peer.answer = lambda frame: encode_reply(frame.id, CounterValue(7), [Sight(5, SEEN.pack())])
    await session.call(READ)
    assert await peer.frames.get() == ObserveFrame(_bookmark(1).pack())
    await peer.next_call()
    await session.call(READ)
    await peer.next_call()  # What the node itself told is not told to it.
    session.bookmark.join(_bookmark(2))
    await session.call(READ)
    assert await peer.frames.get() == ObserveFrame(session.bookmark.pack())
    await peer.next_call()
    assert peer.frames.empty()


def losing(partition: int) -> Callable[[CallFrame], bytes]:
    """A node that lacks what the bookmark names of a partition, for as long as the session names it."""
    refused = BookmarkLost("no node knows it", partition=partition)
    return lambda frame: encode_error(frame.id, refused)


@pytest.fixture
def clock() -> list[float]:
    """Seconds of a client's clock."""
    return [0.0]


@pytest.fixture
def aging(peer: Peer, connect: Connect, clock: list[float]) -> RemoteSession:
    """A session that saw partition 1 at second 0, of nodes that forget after 100 s."""
    bookmark = Bookmark(lambda: clock[0])
    bookmark.note(1, SEEN)
    return connect(peer.url, bookmark=bookmark, forget_after_s=100.0)


@pytest.mark.answers("bookmark-is-older-than-what-is-remembered")
async def test_old_unknown_origins_are_let_go(peer: Peer, aging: RemoteSession, clock: list[float]) -> None:
    clock[0] = 80.0
    aging.bookmark.note(2, SEEN)
    peer.answer = lambda frame: (losing(1) if len(peer.connections) == 1 else counted)(frame)
    with pytest.raises(BookmarkLost):
        await aging.call(READ)
    clock[0] = 90.0
    assert await asyncio.gather(*(aging.call(READ) for _ in range(3))) == [CounterValue(7)] * 3
    frames = [peer.frames.get_nowait() for _ in range(peer.frames.qsize())]
    assert [frame for frame in frames if isinstance(frame, ObserveFrame)][-1] == ObserveFrame(_bookmark(2).pack())


async def test_a_node_that_loses_everything_is_asked_twice_at_most(
    peer: Peer, aging: RemoteSession, clock: list[float]
) -> None:
    clock[0] = 90.0
    peer.answer = losing(1)
    with pytest.raises(BookmarkLost):
        await aging.call(READ)
    assert len(peer.connections) == 2
