"""An inbox over an embedded node: sent once, taken once, with the checkpoint or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import HeadMoved, KeyReused, NotFound, Overloaded, Taken
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.worklist.handle.worklist import Inbox, Message
from tests.client.test_store import subscribers


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with shoal.open(tmp_path / "state", config=Config(queue_pending_max=3)) as opened:
        yield opened


@pytest.fixture
def space(store: Store) -> Space:
    return store.space("crew")


@pytest.fixture
def thread(space: Space) -> Thread:
    return space.thread("writer")


@pytest.fixture
def inbox(thread: Thread) -> Inbox:
    return thread.inbox


async def pending(inbox: Inbox) -> list[Message]:
    return [message async for message in inbox.pending()]


async def taken(inbox: Inbox) -> list[Message]:
    return [message async for message in inbox.taken()]


async def test_messages_wait_in_the_order_in_which_they_were_sent(inbox: Inbox) -> None:
    for number in range(3):
        await inbox.send({"n": number}, by="editor")
    assert [(message.value, message.by, message.taken) for message in await pending(inbox)] == [
        ({"n": number}, "editor", ()) for number in range(3)
    ]


async def test_a_key_sent_twice_is_one_message(inbox: Inbox) -> None:
    first = await inbox.send("do", key="review-17")
    again = await inbox.send("do", key="review-17")
    assert (first.sent, again.sent, again.id) == (True, False, first.id)
    with pytest.raises(KeyReused):
        await inbox.send("do something else", key="review-17")
    assert [message.key for message in await pending(inbox)] == ["review-17"]


async def test_a_taken_message_comes_to_nobody_again(space: Space, inbox: Inbox) -> None:
    await inbox.send("do", key="k")
    (message,) = await pending(inbox)
    await inbox.take(message, by="ann")
    assert await pending(inbox) == []
    with pytest.raises(Taken) as refused:
        await space.thread("writer").inbox.take(message, by="bob")
    assert refused.value.detail["by"] == ["ann"]
    assert not (await inbox.send("do", key="k")).sent
    (gone,) = await taken(inbox)
    assert [finish.by for finish in gone.taken] == ["ann"]


async def test_a_message_and_the_checkpoint_are_one(thread: Thread, inbox: Inbox) -> None:
    await inbox.send("do")
    (message,) = await pending(inbox)
    saved = await thread.save({"done": 1}, take=[message])
    assert await pending(inbox) == []
    with pytest.raises(Taken):
        await thread.save({"done": 2}, take=[message])
    assert (await thread.load()).id == saved.id


async def test_a_save_that_is_refused_takes_nothing(thread: Thread, inbox: Inbox) -> None:
    await inbox.send("do")
    (message,) = await pending(inbox)
    with pytest.raises(HeadMoved):
        await thread.save({}, expect_head="0" * 64, take=[message])
    assert await pending(inbox) == [message]


async def test_a_batch_takes_and_answers(space: Space, thread: Thread, inbox: Inbox) -> None:
    await inbox.send("question")
    (message,) = await pending(inbox)
    async with space.batch() as batch:
        batch.thread("writer").take(message, by="writer")
        batch.thread("writer").save({"answered": 1})
        sent = batch.thread("writer").send("to myself", key="later")
    assert sent.reply.added == [True]
    assert [left.value for left in await pending(inbox)] == ["to myself"]


async def test_receive_gives_each_once_and_waits_for_more(store: Store, inbox: Inbox) -> None:
    await inbox.send("first")
    async with aclosing(inbox.receive()) as messages:
        assert (await anext(messages)).value == "first"
        coming = asyncio.ensure_future(anext(messages))
        await subscribers(store, 1)
        await inbox.send("second")
        assert (await coming).value == "second"
    await subscribers(store, 0)


async def test_next_waits_for_a_message_and_ends_with_its_time(store: Store, inbox: Inbox) -> None:
    assert await inbox.next(timeout=0.01) is None
    waiting = asyncio.ensure_future(inbox.next())
    await subscribers(store, 1)
    await inbox.send("here")
    message = await waiting
    assert message is not None
    assert message.value == "here"


async def test_so_many_wait_and_no_more(inbox: Inbox) -> None:
    for number in range(3):
        await inbox.send(number)
    with pytest.raises(Overloaded, match="3 are allowed"):
        await inbox.send("too many")
    await inbox.take((await pending(inbox))[0])
    await inbox.send("room again")


async def test_a_message_is_found_by_its_id_until_it_is_forgotten(inbox: Inbox) -> None:
    sent = await inbox.send("do", key="k")
    found = await inbox.find(sent.id)
    assert found is not None
    assert found.value == "do"
    await inbox.take(found)
    (gone,) = await taken(inbox)
    assert await inbox.forget(before=gone.taken[0].time) == 0
    assert await inbox.forget(before=gone.taken[0].time + timedelta(milliseconds=1)) == 1
    assert await inbox.find(sent.id) is None
    with pytest.raises(NotFound):
        await inbox.take(found)
    assert (await inbox.send("do", key="k")).sent


async def test_threads_do_not_share_an_inbox(space: Space, inbox: Inbox) -> None:
    await space.thread("other").inbox.send("theirs")
    assert await pending(inbox) == []


async def test_an_inbox_outlives_the_store(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "kept") as store:
        inbox = store.space("crew").thread("t").inbox
        await inbox.send("one")
        await inbox.send("two")
        await inbox.take((await pending(inbox))[0])
    async with shoal.open(tmp_path / "kept") as store:
        assert [message.value for message in await pending(store.space("crew").thread("t").inbox)] == ["two"]
