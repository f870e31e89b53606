"""Claims of items that are decided together: at one node, and by one node for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Accept
from shoal.cluster.messages import Message, Push, Supply
from shoal.errors import LeaseLost, NoQuorum, OutcomeUnknown
from shoal.kinds.lease.serving.leases import LEASE_GATHER_S
from shoal.kinds.lease.state.table import Claim, Group, worklist_mark
from shoal.kinds.lease.state.wishes import Granted, Wishes
from shoal.kinds.worklist.serving.handouts import Worklist
from shoal.protocol.requests import (
    Batch,
    ClaimItem,
    CompleteItem,
    Enqueue,
    ExtendClaim,
    FailItem,
    ItemClaimed,
    QueueItem,
    Term,
)
from shoal.testing.machines import run
from simulation.world.fleet import Fleet
from tests.support.paces import USUAL

TTL_MS = 60_000


def in_fleet(work: Callable[[Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=5.0, quorum_register_retry_s=0.05, **USUAL, **settings) as nodes:
            await work(nodes)

    run(main())


async def put(nodes: Fleet, count: int) -> None:
    items = [QueueItem(f"{number:03}", b"\x01") for number in range(count)]
    await nodes["a"].node.session().call(Enqueue("s", "t", "pages", items), durability="all")


async def claim(nodes: Fleet, name: str, number: int = 0, *, wait: int = 0) -> ItemClaimed:
    token = f"{number:032x}" if number else ""
    return await nodes[name].node.session().call(ClaimItem("s", "t", "pages", TTL_MS, f"worker {number}", token, wait))


async def complete(nodes: Fleet, name: str, claimed: ItemClaimed) -> None:
    request = CompleteItem("s", "t", "pages", claimed.id, claimed.fence, claimed.token, b"\x01", "")
    await nodes[name].node.session().call(request)


class Wire:
    """What a node sends to its peers about keys of the register; `lost` says what is lost."""

    def __init__(self, nodes: Fleet, name: str, *, lost: Callable[[Message], bool] = lambda message: False) -> None:
        register = nodes[name].node.register
        links = register.links
        self.sent: list[Message] = []
        self.held: list[tuple[bytes, Message]] = []

        def send(node: bytes, message: Message) -> None:
            self.sent.append(message)
            if lost(message):
                self.held.append((node, message))
            else:
                links.send(node, message)

        register.links = links._replace(send=send)
        self.send = links.send

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.sent)


def test_claims_at_all_nodes_are_decided_by_the_node_that_decided_last() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 30)
        first = await claim(nodes, "a")
        wires = {name: Wire(nodes, name) for name in "abc"}
        names = [name for name in "bc" for _ in range(10)]
        claimed = await asyncio.gather(*(claim(nodes, name) for name in names))
        assert len({first.id, *(each.id for each in claimed)}) == 21
        assert all(each.claimed for each in claimed)
        assert [wires[name].count(Accept) for name in "bc"] == [0, 0]
        assert wires["a"].count(Accept) <= 8  # Of two messages each.
        await asyncio.gather(*(complete(nodes, name, each) for name, each in zip(names, claimed, strict=True)))
        await asyncio.sleep(2 * LEASE_GATHER_S)
        grants = (await nodes["a"].node.leases.shard_at(wishes_of(wires["b"]).key).read()).grants  # type: ignore[union-attr]
        assert len(grants) == 1  # The completed ones have left the table.
        assert [wires[name].count(Accept) for name in "bc"] == [0, 0]

    in_fleet(work)


def wishes_of(wire: Wire) -> Wishes:
    return next(message for message in wire.sent if isinstance(message, Wishes))


@pytest.mark.answers("items-have-one-worker")
def test_a_node_decides_itself_if_the_one_that_should_does_not_answer() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 3)
        first = await claim(nodes, "a")
        Wire(nodes, "b", lost=lambda message: isinstance(message, Wishes))
        second = await claim(nodes, "b")
        assert second.claimed
        assert second.id != first.id
        await complete(nodes, "b", second)

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_a_node_answers_for_others_only_what_is_stored() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 3)
        first = await claim(nodes, "a")
        wire = Wire(nodes, "a", lost=lambda message: isinstance(message, Accept))
        second = await claim(nodes, "b")  # The change of the other node is not stored; so this one decides itself.
        third = await claim(nodes, "c")
        assert len({first.id, second.id, third.id}) == 3
        answers = [message for message in wire.sent if isinstance(message, Granted)]
        assert not any(answer.is_decided for answer in answers)
        assert wire.held

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_an_answer_that_comes_after_the_node_decided_itself_changes_nothing() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 3)
        await claim(nodes, "a")
        wire = Wire(nodes, "a", lost=lambda message: isinstance(message, Granted))
        second = await claim(nodes, "b")  # It got the same item by itself.
        assert second.claimed
        for node, message in wire.held:
            wire.send(node, message)
        await asyncio.sleep(1.0)
        await nodes["b"].node.session().call(ExtendClaim("s", "t", "pages", second.id, second.fence, second.token, 2 * TTL_MS))
        await complete(nodes, "b", second)

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_a_node_counts_on_what_another_one_granted_from_when_it_asked() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 2)
        await claim(nodes, "a")
        wire = Wire(nodes, "a", lost=lambda message: isinstance(message, Granted))
        asked_s = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(claim(nodes, "b"))
        await asyncio.sleep(0.4)
        [(node, message)] = wire.held
        wire.send(node, message)
        claimed = await asking
        known = [known for known in nodes["b"].node.leases._known.values() if known.token.hex() == claimed.token]
        assert [round(each.until_s - asked_s, 1) for each in known] == [59.4]  # 1 % less than the ttl.

    in_fleet(work)


def test_an_item_that_a_claim_got_after_its_client_gave_up_is_free_again() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 2)
        first = await claim(nodes, "a")
        wire = Wire(nodes, "a", lost=lambda message: isinstance(message, Granted))
        asking = asyncio.ensure_future(claim(nodes, "b", 7))
        async with asyncio.timeout(30):
            while not wire.held:
                await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for node, message in wire.held:
            wire.send(node, message)
        third = await claim(nodes, "c", 8, wait=5000)
        assert third.claimed
        assert third.id != first.id

    in_fleet(work)


@pytest.mark.answers("items-have-one-worker")
def test_late_grants_to_ended_claims_are_given_back() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 2)
        await claim(nodes, "a")
        wire = Wire(nodes, "b", lost=lambda message: isinstance(message, Wishes))
        second = await claim(nodes, "b", 7)  # The node has decided itself.
        await complete(nodes, "b", second)
        shard = nodes["a"].node.leases.shard_at(wishes_of(wire).key)
        assert shard is not None
        async with asyncio.timeout(30):
            while len((await shard.read()).grants) > 1:
                await asyncio.sleep(0.1)
        answers = Wire(nodes, "a")
        [late, *_] = [message for _, message in wire.held if isinstance(message, Wishes) and message.claims]
        wire.send(nodes["a"].identity().node, late)
        async with asyncio.timeout(30):
            while not answers.count(Granted) or len((await shard.read()).grants) > 1:
                await asyncio.sleep(0.1)
        [answer] = [message for message in answers.sent if isinstance(message, Granted)]
        assert answer.found != [None]

    in_fleet(work)


def test_claims_of_one_moment_are_one_change_and_their_attempts_one_operation() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 20)
        await claim(nodes, "a")
        wire = Wire(nodes, "a")
        before = issued(nodes, "a")
        claimed = await asyncio.gather(*(claim(nodes, "a") for _ in range(15)))
        assert [each.attempt for each in claimed] == [1] * 15
        assert len({each.id for each in claimed}) == len({each.key for each in claimed}) == 15
        assert wire.count(Accept) == 2
        assert issued(nodes, "a") == before + 1

    in_fleet(work)


def issued(nodes: Fleet, name: str) -> int:
    """How many operations there are."""
    return sum(sum(vector.values()) for vector in nodes[name].node._database.partitions.vectors().values())


def test_nothing_is_decided_if_there_is_no_item() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        await complete(nodes, "a", await claim(nodes, "a"))
        await nodes.converged()
        await asyncio.sleep(2.0)
        wires = [Wire(nodes, name) for name in "ab"]
        assert not (await claim(nodes, "b")).claimed
        assert not (await claim(nodes, "a")).claimed
        assert [wire.sent for wire in wires] == [[], []]

    in_fleet(work)


def test_a_claim_that_is_given_up_ends_its_term_for_renewals_that_are_on_their_way() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        claimed = await claim(nodes, "a", 1)
        term = Term("s", "t", False, claimed.fence, claimed.token, "pages", claimed.id)
        leases = nodes["b"].node.leases  # It has not heard of this claim.
        extended = leases.extended(term, TTL_MS)
        withdrawn = leases.withdraw("s", worklist_mark("t", "pages"), bytes.fromhex(claimed.token))
        await asyncio.gather(extended, withdrawn)
        assert not leases.admits([term])

    in_fleet(work)


def test_a_completion_under_a_claim_whose_attempt_never_began_is_refused() -> None:
    """The item is the claim's by the register, and the try that is under way is another claim's, whose worker has died."""

    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        first = await nodes["a"].node.session().call(ClaimItem("s", "t", "pages", 4000, "one"))
        await asyncio.sleep(8)
        node = nodes["b"].node
        mark, item, token = worklist_mark("t", "pages"), bytes.fromhex(first.id), b"2" * 16
        worklist = Worklist("s", mark, lambda: (item,), lambda item: Group())
        handed = await node._handouts.hand_out(worklist, Claim(token, "two", TTL_MS))
        assert handed is not None
        assert handed.grant.fence > first.fence
        request = CompleteItem("s", "t", "pages", first.id, handed.grant.fence, token.hex(), b"\x01", "")
        with pytest.raises(LeaseLost, match="gave the item back") as refused:
            await node.session().call(request)
        assert refused.value.written == "no"

    in_fleet(work)


def test_an_item_that_was_given_back_is_not_completed_in_the_same_batch() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        claimed = await claim(nodes, "a")
        under = "s", "t", "pages", claimed.id, claimed.fence, claimed.token
        with pytest.raises(LeaseLost, match="gave the item back") as refused:
            await nodes["a"].node.session().call(Batch([FailItem(*under), CompleteItem(*under, b"\x01", "")]))
        assert refused.value.written == "no"
        await complete(nodes, "a", claimed)

    in_fleet(work)


def test_claims_of_one_moment_are_sent_together() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 20)
        await nodes.converged()
        await claim(nodes, "a")
        await claim(nodes, "b")
        wire = Wire(nodes, "b")
        claimed = await asyncio.gather(*(claim(nodes, "b", number) for number in range(1, 8)))
        assert len({each.id for each in claimed}) == 7
        assert wire.count(Wishes) == 1

    in_fleet(work)


def test_a_claim_that_has_ended_is_stored_with_the_next() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 20)
        claimed = await claim(nodes, "a")
        node = nodes["a"].node
        wire = Wire(nodes, "a")
        await complete(nodes, "a", claimed)
        await claim(nodes, "a")
        assert wire.count(Accept) == 2  # One change, told to both peers.
        shard = node._handouts._shard(Worklist("s", worklist_mark("t", "pages"), lambda: (), lambda item: Group()))
        assert len((await shard.read()).grants) == 1

    in_fleet(work)


def test_a_write_under_a_claim_needs_copies() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        claimed = await claim(nodes, "a")
        await nodes.converged()

        def keep(source: str, target: str, message: bytes) -> bytes | None:
            return None if source == "a" and isinstance(messages.decode(message), Push | Supply) else message

        nodes.spoil = keep
        with pytest.raises(OutcomeUnknown):
            await complete(nodes, "a", claimed)

    in_fleet(work)


def test_an_item_that_a_claim_cannot_begin_is_given_back() -> None:
    """Its attempt finds no copies, so others may have it before its term is over."""

    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        await nodes.converged()

        def keep(source: str, target: str, message: bytes) -> bytes | None:
            return None if source == "a" and isinstance(messages.decode(message), Push | Supply) else message

        nodes.spoil = keep
        with pytest.raises((NoQuorum, OutcomeUnknown)):
            await claim(nodes, "a")
        nodes.spoil = lambda source, target, message: message
        await nodes.converged(TTL_MS / 2000)
        async with asyncio.timeout(TTL_MS / 4000):
            assert (await claim(nodes, "b", wait=TTL_MS // 5)).claimed

    in_fleet(work)


def test_an_item_that_is_given_back_is_free_at_once() -> None:
    async def work(nodes: Fleet) -> None:
        await put(nodes, 1)
        claimed = await claim(nodes, "a")
        under = "s", "t", "pages", claimed.id, claimed.fence, claimed.token
        await nodes["a"].node.session().call(FailItem(*under))
        async with asyncio.timeout(TTL_MS / 4000):
            assert (await claim(nodes, "a", wait=TTL_MS // 5)).attempt == 2

    in_fleet(work)
