"""What a Python caller gets wrong at first: refused with a typed error, and nothing is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidSchema, InvalidValue, NotFound, ShoalError
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.node import Node
from shoal.schemas import Schema
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment

ANY: Any = 5  # What a type checker would have refused.


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    environment = SimulatedEnvironment(1).environment
    node = Node(MemoryStorage(), config=Config(), environment=environment)
    session = node.session()
    yield Store(StoreConnection(session, Config(), "local", environment.entropy), close=session.close)
    await node.stop()


async def events(thread: Thread, after: Any) -> list[Any]:
    return [event async for event in thread.journal.read(after=after)]


async def filtered(thread: Thread, filter: Any) -> list[Any]:
    return [found async for found in thread.history(filter=filter)]


@pytest.mark.parametrize(
    ("mistake", "error", "said"),
    [
        (lambda thread: thread.save({"a": 1}, metadata=ANY), InvalidValue, "metadata is a mapping"),
        (lambda thread: thread.save({"a": 1}, take=[ANY]), InvalidInput, "take needs a message"),
        (lambda thread: thread.extend("log", ANY), InvalidInput, "is a list of elements, not int"),
        (lambda thread: thread.step("bill", call=ANY), InvalidInput, "call must be a function"),
        (lambda thread: thread.load(ANY), InvalidInput, "checkpoint must be text or None; got 5"),
        (lambda thread: thread.rollback(ANY), InvalidInput, "to must be text; got 5"),
        (lambda thread: thread.prune(branch="nowhere"), NotFound, "no branch 'nowhere'"),
        (lambda thread: thread.worklist("w").add("abc"), InvalidInput, "got the text 'abc'"),
        (lambda thread: events(thread, "a cursor"), InvalidInput, "after must be bytes; got 'a cursor'"),
        (lambda thread: filtered(thread, {"n": {"$near": 3}}), InvalidInput, r"'\$near' is not a filter operator.*\$gte"),
        (lambda thread: filtered(thread, {"$or": [{"n": 3}]}), InvalidInput, r"must begin with fields, not with .*'\$or'"),
        (lambda thread: thread.save({"a": 1}, durability="quorom"), InvalidInput, r"durability .*Did you mean 'quorum'\?"),
        (lambda thread: thread.save({"a": 1}, on_conflict="frok"), InvalidInput, r"on_conflict .*Did you mean 'fork'\?"),
        (lambda thread: thread.resume(on_drift="refus"), InvalidInput, r"on_drift .*Did you mean 'refuse'\?"),
        (lambda thread: thread.resolve("k", "retyr"), InvalidInput, r"Did you mean 'retry'\?"),
        (
            lambda thread: thread.edit("two"),
            InvalidInput,
            r"a change is a mapping of channels to values, or a JSON Patch.*got 'two'",
        ),
        (lambda thread: thread.edit(ANY), InvalidInput, "a change is a mapping of channels .*got 5"),
        (lambda thread: filtered(thread, [1]), InvalidInput, "filter must be a mapping of fields"),
    ],
)
async def test_a_wrong_type_is_named_and_nothing_is_written(
    store: Store, mistake: Callable[[Thread], Awaitable[Any]], error: type[ShoalError], said: str
) -> None:
    thread = store.space("crew").thread("t")
    first = await thread.save({"log": [1]})
    with pytest.raises(error, match=said) as refused:
        await mistake(thread)
    assert refused.value.written == "no"
    assert (await thread.load()).id == first.id
    assert (await store.status()).operations == 1


def test_a_migration_is_named_by_a_number() -> None:
    one: Any = "one"
    with pytest.raises(InvalidSchema, match="keyed by the version they upgrade; got 'one'"):
        Schema("s", version=2, migrations={one: dict})


@named
class Handle:
    """A handle whose method takes more than it says, and one that fails by itself."""

    def taken(self, number: int) -> Any:
        return number

    def failing(self, number: int) -> Any:
        raise TypeError(f"not for {number}")


def test_a_call_that_succeeds_is_not_checked() -> None:
    assert Handle().taken("text") == "text"  # type: ignore[arg-type]


def test_an_error_that_no_argument_caused_stays() -> None:
    with pytest.raises(TypeError, match="not for 1"):
        Handle().failing(1)
    with pytest.raises(InvalidInput, match="number must be an integer"):
        Handle().failing("text")  # type: ignore[arg-type]
