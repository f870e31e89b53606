"""What takes more than one request: if a later one fails, the error does not say that nothing was written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import CatchingUp, OutcomeUnknown
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Push, Reply, Request, Subscription

FULL = CatchingUp("full. Nothing was written. Try again later.")


class FirstOnly:
    """A session that answers one request, and refuses all others."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.bookmark = Bookmark()
        self.connections = 1

    async def call(self, request: Request[Any], /, **options: object) -> Any:
        if not self._replies:
            raise FULL
        return self._replies.pop()

    def subscribe(self, subscription: Subscription, /) -> AbstractAsyncContextManager[AsyncIterator[Push]]:
        raise FULL

    async def close(self) -> None:
        return None


LATER = datetime(2200, 1, 1, tzinfo=UTC)
FLOWS: dict[str, tuple[Reply, Callable[[Space], Awaitable[object]]]] = {
    "clear a set": (requests.SetCleared(7, True), lambda space: space.set("s").clear()),
    "sweep items": (requests.ItemsSwept(7, True), lambda space: space.items.sweep("notes")),
    "refresh items": (requests.ItemsRefreshed(7), lambda space: space.items.refresh(("notes",), ["a", "b"])),
    "forget jobs": (requests.Purged(7, True), lambda space: space.thread("t").worklist("w").forget(before=LATER)),
    "create a document": (requests.Begun(created=True), lambda space: space.document("d", initial={"x": 1})),
}


def space(*replies: Reply) -> Space:
    config = Config(page_items_max=1, request_timeout_s=0.1)
    return Space(StoreConnection(FirstOnly(*replies), config, "local", bytes), "crew")


@pytest.mark.answers("unknown-outcomes-are-told", note="what fails after something was written says so")
@pytest.mark.parametrize(("reply", "flow"), FLOWS.values(), ids=FLOWS)
async def test_an_earlier_requests_write_is_not_denied(reply: Reply, flow: Callable[[Space], Awaitable[object]]) -> None:
    with pytest.raises(OutcomeUnknown, match=r"and the next part failed: full\. Try again later\.") as raised:
        await flow(space(reply))
    assert raised.value.written == "unknown"


@pytest.mark.parametrize(("reply", "flow"), FLOWS.values(), ids=FLOWS)
async def test_if_the_first_request_fails_nothing_was_written(reply: Reply, flow: Callable[[Space], Awaitable[object]]) -> None:
    with pytest.raises(CatchingUp) as raised:
        await flow(space())
    assert raised.value.written == "no"
