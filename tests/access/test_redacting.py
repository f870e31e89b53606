"""Rules of redaction with tokens: an administrator of the nodes sets them, a reader of the space sees them."""

from __future__ import annotations

import pytest

import shoal
from shoal.errors import Forbidden, RedactionRefused
from tests.access.conftest import Mint, Serve

SECRET = "sk-ant-" + "Zq7" * 12


async def test_rules_are_set_by_administrators_and_seen_by_readers(mint: Mint, serve: Serve) -> None:
    url = (await serve(token_keys=mint.keys)).url

    def named(*allow: str) -> str:
        return mint.make(*allow).text

    async with shoal.connect(url, token=named("*:admin", ".shoal:admin")) as admin:
        await admin.space("crew").redaction.set(credentials=True)
    async with shoal.connect(url, token=named("crew:read,write,admin")) as store:
        space = store.space("crew")
        with pytest.raises(Forbidden):
            await space.redaction.set(cards=True)
        with pytest.raises(Forbidden):
            await space.redaction.unset()
        assert (await space.redaction.get()).credentials
        await space.register("r").set(SECRET)
        assert await space.register("r").get() == "[credentials]"
        with pytest.raises(RedactionRefused):
            await space.register(SECRET).set(1)
    async with shoal.connect(url, token=named("other:read,write,admin")) as store:
        with pytest.raises(Forbidden):
            await store.space("crew").redaction.get()
        with pytest.raises(Forbidden):
            await store.space("crew").redaction.test("x", credentials=True)
