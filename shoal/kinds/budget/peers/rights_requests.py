"""Rights that one node requests from another: a question over their link, answered with a transfer.

Law: only the transfer counts, which is an operation like any other; the answer only says that it was made. So a
lost or late answer costs only one more question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.cluster.messages import RightsReply, RightsRequest
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.kinds.budget.state import shares
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.incarnation import Incarnation
from shoal.node.target import Target
from shoal.protocol import requests
from shoal.storage.keys import Kind


class RightsRequests:
    """Both sides of rights requests.

    `send` sends a question to a node; `linked` returns the linked nodes, and whether these are all owners.
    """

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
        """Ask a node for rights; None if it does not answer within `rights_wait_s`.

        This incarnation must have an origin that is durable.
        """
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
        """Take a node's answer; one to an unknown or late question is ignored."""
        asked, answer = self._questions.get(given.id, (b"", None))
        if answer is not None and asked == node and not answer.done():
            answer.set_result(given)

    def answer(self, seek: RightsRequest) -> RightsReply:
        """Answer a question: transfer rights if this node can give any. An answer with 0 means that it gives none.

        Raises:
            InvalidName: the space or the budget has an illegal name.
        """
        check_name("space", seek.space)
        target = Target(Kind.BUDGET, seek.space, check_name("budget", seek.budget))
        amount = self._amount(seek, target)
        if not amount:
            return RightsReply(seek.id, 0, b"", 0)
        request = requests.TransferRights(seek.space, seek.budget, amount, seek.origin.hex(), seek.node.hex())
        try:
            reply = self._database.issue(request, None).reply
        except ShoalError:  # This node cannot write now, or the question is not valid.
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
