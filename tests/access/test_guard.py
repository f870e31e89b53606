"""A guarded session passes on what a token grants, and nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from shoal.access.bearer import Bearer, Token
from shoal.access.grants import parsed
from shoal.access.guard import Guarded
from shoal.errors import Forbidden, ReadOnly, Unauthenticated
from shoal.protocol import requests


class Inside:
    """A session that notes what reaches it."""

    def __init__(self) -> None:
        self.reached: list[Any] = []

    async def call(self, request: Any, /, **_: Any) -> Any:
        self.reached.append(request)
        after = getattr(request, "after", None)
        return requests.Names(["crew", "other"], True) if after is None else requests.Names(["crew-2"], False)

    @asynccontextmanager
    async def subscribe(self, subscription: Any, /) -> AsyncIterator[AsyncIterator[Any]]:
        self.reached.append(subscription)

        async def pushes() -> AsyncIterator[Any]:
            for number in range(3):
                yield number

        yield pushes()


def bearer(*allow: str) -> Bearer:
    token = Token("id", "ana", "shoal", "shoal", "key", 0.0, 100.0, [parsed(each) for each in allow])
    return Bearer(token, now_s=lambda: 0.0, entropy=os.urandom)


async def test_capabilities_that_are_not_granted_are_absent() -> None:
    inside = Inside()
    guarded = Guarded(inside, bearer("crew:read"))  # type: ignore[arg-type]
    with pytest.raises(Forbidden, match="Nothing was written"):
        await guarded.call(requests.Add("crew", "n", 1))
    assert inside.reached == []
    await guarded.call(requests.ReadCounter("crew", "n"))
    assert len(inside.reached) == 1


async def test_no_push_is_delivered_once_a_token_ended() -> None:
    mine = bearer("crew:read")
    guarded = Guarded(Inside(), mine)  # type: ignore[arg-type]
    async with guarded.subscribe(requests.Watch("crew")) as pushes:
        assert cast("Any", await anext(pushes)) == 0
        mine.end("revoked")
        with pytest.raises(Unauthenticated, match="revoked"):
            await anext(pushes)


async def test_a_page_of_spaces_names_granted_ones_alone() -> None:
    guarded = Guarded(Inside(), bearer("crew-*:read"))  # type: ignore[arg-type]
    assert await guarded.call(requests.ListSpaces()) == requests.Names(["crew-2"], False)


class Unwritable:
    """A log of reads that cannot be written."""

    async def note(self, *_: Any) -> None:
        raise ReadOnly("storage failed. Nothing was written.")


async def test_nothing_is_read_that_could_not_be_noted() -> None:
    inside = Inside()
    guarded = Guarded(inside, bearer("crew:read"), Unwritable())  # type: ignore[arg-type]
    with pytest.raises(ReadOnly):
        await guarded.call(requests.ReadCounter("crew", "n"))
    assert inside.reached == []


class Used(Inside):
    """A session that tells what a space holds."""

    async def call(self, request: Any, /, **_: Any) -> Any:
        objects = [requests.ObjectUse("thread", "pay-ada", 9), requests.ObjectUse("counter", "tokens", 1)]
        kinds = [requests.KindUse("thread", 9, 1), requests.KindUse("counter", 1, 1)]
        prefixes = [requests.PrefixUse("pay-", 9, 1)]
        return requests.SpaceUsageView(request.space, 1, 1, False, "", 10, 2, kinds, prefixes, 1, objects, [], [])


async def test_names_of_what_a_space_holds_are_told_to_those_who_may_list_it() -> None:
    async def used(*allow: str) -> Any:
        return await Guarded(Used(), bearer(*allow)).call(requests.ReadSpaceUsage("crew"))  # type: ignore[arg-type]

    sums = await used("crew:quota:read", "other:read")
    assert (sums.bytes, sums.objects, len(sums.kinds), sums.prefixes_in_all) == (10, 2, 2, 1)
    assert (sums.prefixes, sums.largest) == ([], [])
    assert [each.name for each in (await used("crew:quota,counter:read")).largest] == ["tokens"]
    whole = await used("crew:read")
    assert [each.name for each in whole.largest] == ["pay-ada", "tokens"]
    assert [each.prefix for each in whole.prefixes] == ["pay-"]
