"""A client of a simulated cluster: what is noted of its writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from shoal.protocol.requests import Add, Added, AnyReply, Begun, Request, RestoreBeginning, Write
from simulation.world.client import Client, Sender

RESTORE = RestoreBeginning("crew", "d", bytes(32), b"\x00\x00", b"\x00\x00", {})


class Session:
    async def call(self, request: Request[Any], /, **_: object) -> AnyReply:
        return Begun(created=True) if isinstance(request, RestoreBeginning) else Added(1, True)


async def test_a_mirrors_own_restoration_is_no_act() -> None:
    sender = Sender(cast(Client, SimpleNamespace(session=Session(), new_key=lambda: "k")))
    with sender.watching(Write) as watched:
        await sender.call(RESTORE)
        reply = await sender.call(Add("crew", "c", 1))
    sent = await watched.sent
    assert sent is not None
    assert sent.request == Add("crew", "c", 1)
    assert watched.reply == reply
