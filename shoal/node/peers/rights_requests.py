"""Rights that one node asks of another: a question over their link, and a transfer for an answer.

Law: the transfer is an operation like any other, and what counts; the answer only says that it was made. So an
answer that is lost, or comes late, costs nothing but a question more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.cluster.messages import RightsReply, RightsRequest
from shoal.config import Config
from shoal.crdt.values import shares
from shoal.errors import ShoalError
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.incarnation import Incarnation
from shoal.node.target import Target
from shoal.protocol import requests
from shoal.storage.keys import Kind


class RightsRequests:
    """`send` is told a node and a question; `linked` says which nodes can be asked, and whether these are all owners."""

    def __init__(
        self,
        database: Database,
        *,
        incarnation: Incarnation,
        send: Callable[[bytes, RightsRequest], None],
        linked: Callable[[], tuple[frozenset[bytes], bool]],
        config: Config,
    ) -> None:
        self._database = database
        self._linked = linked
        self._incarnation = incarnation
        self._send = send
        self._config = config
        self._last_id = 0
        self._questions: dict[int, tuple[bytes, asyncio.Future[RightsReply]]] = {}  # Bounded by the requests under way.

    async def ask(self, node: bytes, target: Target, amount: int, *, spare: bool) -> RightsReply | None:
        """What a node answers within `rights_wait_s`. This incarnation has an origin, which is durable."""
        assert self._incarnation.current is not None
        self._last_id += 1
        answer: asyncio.Future[RightsReply] = asyncio.get_running_loop().create_future()
        self._questions[self._last_id] = node, answer
        seek = RightsRequest(
            self._last_id, target.space, target.name, amount, self._incarnation.current, self._incarnation.node, spare
        )
        self._send(node, seek)
        try:
            async with asyncio.timeout(self._config.rights_wait_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._questions[seek.id]

    def given(self, node: bytes, given: RightsReply) -> None:
        """A node has answered."""
        asked, answer = self._questions.get(given.id, (b"", None))
        if answer is not None and asked == node and not answer.done():
            answer.set_result(given)

    def answer(self, seek: RightsRequest) -> RightsReply:
        """Give rights to who asks for them, if there are any.

        Raises:
            InvalidName: it names what cannot be.
        """
        check_name("space", seek.space)
        target = Target(Kind.BUDGET, seek.space, check_name("budget", seek.budget))
        amount = self._amount(seek, target)
        if not amount:
            return RightsReply(seek.id, 0, b"", 0)
        request = requests.TransferRights(seek.space, seek.budget, amount, seek.origin.hex(), seek.node.hex())
        try:
            self._database.issuer.check(request)
            reply = self._database.issue(request, None).reply
        except ShoalError:  # It cannot write now, or the question is none.
            return RightsReply(seek.id, 0, b"", 0)
        assert isinstance(reply, requests.Rights)
        own = self._incarnation.current
        if not reply.moved or own is None:
            return RightsReply(seek.id, 0, b"", 0)
        return RightsReply(seek.id, reply.moved, own, self._database.vector(target)[own])

    def _amount(self, seek: RightsRequest, target: Target) -> int:
        rows = self._database.document(target).rows
        if not seek.spare:
            return shares.to_give_in_need(self._database.budgets.usable(rows, target), seek.amount)
        linked, everyone = self._linked()
        return shares.to_give(self._database.budgets.spread(rows, target, linked, everyone=everyone), seek.amount)
