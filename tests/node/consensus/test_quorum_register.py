"""The quorum register of real nodes: what it promises while links are cut and nodes crash, lose their disks and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

from shoal.cluster import messages
from shoal.cluster.consensus.ballots import Accept, Motion, Vote
from shoal.cluster.consensus.recovery import COUNTS_AHEAD
from shoal.cluster.messages import Message
from shoal.config import Config
from shoal.errors import (
    InvalidName,
    InvalidValue,
    NoQuorum,
    OutcomeUnknown,
    Overloaded,
    RegisterChanged,
    ShuttingDown,
    TooLarge,
)
from shoal.node.consensus.quorum_register import QuorumRegister, Versioned
from shoal.node.node import Node
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.world.environment import SimulatedEnvironment
from simulation.world.fleet import Fleet, Member

CHANGE = b"0123456789abcdef"


def fleet(names: str = "abc", **settings: Any) -> Fleet:
    return Fleet(names, quorum_timeout_s=30.0, quorum_register_retry_s=0.01, **settings)


@contextmanager
def impatient(member: Member) -> Iterator[None]:
    """Its operations, which cannot succeed, end soon."""
    register = member.node.register
    before = register._config
    register._config = msgspec.structs.replace(before, quorum_timeout_s=0.3)
    try:
        yield
    finally:
        register._config = before


async def voting(nodes: Fleet, names: str = "abc") -> None:
    """Return once all of these vote."""
    await nodes[names[0]].node.register.read("k")
    async with asyncio.timeout(30):
        while not all(nodes[name].node.register.is_voting for name in names):
            await asyncio.sleep(0.002)


async def eventually(register: QuorumRegister, key: str = "k") -> Versioned:
    """Read as soon as a majority votes again."""
    async with asyncio.timeout(30):
        while True:
            with suppress(NoQuorum):
                return await register.read(key)


async def test_a_change_on_one_node_is_read_on_another() -> None:
    async with fleet() as nodes:
        assert await nodes["a"].node.register.read("k") == (0, b"")
        assert await nodes["a"].node.register.change("k", 0, b"one") == (1, b"one")
        assert await nodes["b"].node.register.read("k") == (1, b"one")
        assert await nodes["c"].node.register.change("k", 1, b"two") == (2, b"two")
        assert await nodes["a"].node.register.read("k") == (2, b"two")
        assert await nodes["a"].node.register.read("other") == (0, b"")


async def test_a_change_of_another_version_is_refused_and_names_it() -> None:
    async with fleet() as nodes:
        await nodes["a"].node.register.change("k", 0, b"one")
        with pytest.raises(RegisterChanged, match="has version 1, not 0") as refused:
            await nodes["b"].node.register.change("k", 0, b"two")
        assert refused.value.detail["version"] == 1


async def test_of_changes_at_once_one_is_made() -> None:
    async with fleet() as nodes:

        async def change(name: str, content: bytes) -> bool:
            try:
                await nodes[name].node.register.change("k", 0, content)
            except RegisterChanged:
                return False
            return True

        made = await asyncio.gather(*(change(name, b"%d" % number) for number, name in enumerate("abcabc")))
        assert sum(made) == 1
        assert (await nodes["b"].node.register.read("k")).content == b"%d" % made.index(True)


@pytest.mark.answers("register-is-linearizable")
async def test_counting_from_all_nodes_loses_no_count() -> None:
    async with fleet() as nodes:

        async def count(name: str) -> None:
            register = nodes[name].node.register
            for _ in range(5):
                while True:
                    version, content = await register.read("k")
                    with suppress(RegisterChanged):
                        await register.change("k", version, b"%d" % (int(content or b"0") + 1))
                        break

        await asyncio.gather(*(count(name) for name in "abc"))
        assert await nodes["a"].node.register.read("k") == (15, b"15")


async def test_a_majority_goes_on_and_the_minority_says_that_nothing_was_written() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        await nodes.isolate("c")
        await nodes["b"].node.register.change("k", 1, b"two")
        with (
            pytest.raises(NoQuorum, match=r"b:1 cannot be reached\. Nothing was written"),
            impatient(nodes["c"]),
        ):
            await nodes["c"].node.register.change("k", 1, b"three")
        with pytest.raises(NoQuorum), impatient(nodes["c"]):
            await nodes["c"].node.register.read("k")
        nodes.link_all("c")
        assert await eventually(nodes["c"].node.register) == (2, b"two")


@pytest.mark.answers("register-is-linearizable")
async def test_a_change_whose_votes_are_lost_is_unknown_and_made_once_when_it_is_repeated() -> None:
    async with fleet() as nodes:
        await voting(nodes)

        def lose_second_votes(source: str, target: str, message: bytes) -> bytes | None:
            decoded = messages.decode(message)
            return None if isinstance(decoded, Vote) and decoded.accepting else message

        nodes.spoil = lose_second_votes
        with pytest.raises(OutcomeUnknown, match="Repeat it with its id"), impatient(nodes["a"]):
            await nodes["a"].node.register.change("k", 0, b"one", id=CHANGE)
        nodes.spoil = lambda source, target, message: message
        assert await nodes["b"].node.register.change("k", 0, b"one", id=CHANGE) == (1, b"one")
        await nodes["c"].node.register.change("k", 1, b"two")
        assert await nodes["c"].node.register.change("k", 0, b"one", id=CHANGE) == (1, b"one")
        assert await nodes["a"].node.register.read("k") == (2, b"two")


async def test_a_change_that_is_too_old_to_be_recognised_has_an_unknown_outcome() -> None:
    async with fleet() as nodes:
        register = nodes["a"].node.register
        await register.change("k", 0, b"one", id=CHANGE)
        for version in range(1, 20):
            await register.change("k", version, b"more")
        with pytest.raises(OutcomeUnknown, match="is not known whether this change of 'k' was made"):
            await register.change("k", 0, b"one", id=CHANGE)


async def test_votes_survive_the_power_cut_of_all_nodes() -> None:
    async with fleet() as nodes:
        await nodes["a"].node.register.change("k", 0, b"one")
        left = {name: await nodes.crash(name) for name in "abc"}
        for name, storage in left.items():
            nodes.start(name, storage)
        assert await eventually(nodes["c"].node.register) == (1, b"one")


@pytest.mark.answers("register-is-linearizable")
async def test_a_node_that_lost_its_disk_does_not_vote_until_the_others_have_told_it() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        await nodes.crash("b")
        await nodes["a"].node.register.change("k", 1, b"two")
        await nodes.isolate("a")
        nodes.start("b", MemoryStorage(), linked=False)
        nodes.link("b", "c")
        nodes.link("c", "b")
        with pytest.raises(NoQuorum, match="may have forgotten votes"), impatient(nodes["b"]):
            await nodes["b"].node.register.read("k")
        with pytest.raises(NoQuorum), impatient(nodes["c"]):
            await nodes["c"].node.register.change("k", 2, b"three")
        nodes.link_all("a")
        assert await eventually(nodes["b"].node.register) == (2, b"two")
        await nodes.isolate("a")
        assert await eventually(nodes["c"].node.register) == (2, b"two")


async def test_a_lost_disk_is_made_up_for_although_nobody_uses_the_register() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        for name in "abc":
            await nodes.crash(name)
            nodes.start(name, MemoryStorage())
            async with asyncio.timeout(30):
                while nodes[name].node.register._acceptor.term is None:
                    await asyncio.sleep(0.005)
        assert await eventually(nodes["b"].node.register) == (1, b"one")


async def test_a_copy_of_a_directory_does_not_vote_with_old_promises() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        copy = nodes["b"].storage.left_by_crash(0)
        await nodes.isolate("c")
        await nodes["a"].node.register.change("k", 1, b"two")
        await nodes.crash("b")
        await nodes.isolate("a")
        nodes.start("b", copy, linked=False)
        nodes.link("b", "c")
        nodes.link("c", "b")
        with pytest.raises(NoQuorum), impatient(nodes["c"]):
            await nodes["c"].node.register.read("k")
        nodes.link_all("a")
        assert await eventually(nodes["c"].node.register) == (2, b"two")


async def test_a_device_that_was_set_back_does_not_vote_where_its_votes_are_known() -> None:
    """Nothing in the directory tells, and no operation is missing from it; a voter that has counted its votes knows."""
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        identity = nodes["b"].storage.identity
        copy = nodes["b"].storage.left_by_crash(0)
        copy.identity = identity
        await nodes.isolate("c")
        await nodes["a"].node.register.change("k", 1, b"two")
        nodes.link_all("c")
        await nodes["a"].node.register.read("other")  # Now c knows how often b has voted.
        await nodes.crash("b")
        await nodes.isolate("a")
        nodes.start("b", copy, linked=False)
        nodes.link("b", "c")
        nodes.link("c", "b")
        with pytest.raises(NoQuorum), impatient(nodes["c"]):
            await nodes["c"].node.register.read("k")
        nodes.link_all("a")
        assert await eventually(nodes["c"].node.register) == (2, b"two")


@pytest.mark.answers("register-is-linearizable")
async def test_without_a_majority_of_the_disks_the_register_stays_unavailable_and_says_so() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        for name in "bc":
            await nodes.crash(name)
        for name in "bc":
            nodes.start(name, MemoryStorage())
        await nodes.admitted()
        with (
            pytest.raises(NoQuorum, match=r"b:1 may have.* c:1 may have forgotten votes"),
            impatient(nodes["a"]),
        ):
            await nodes["a"].node.register.read("k")


async def test_the_register_is_founded_when_all_nodes_are_up_and_not_before() -> None:
    async with fleet() as nodes:
        await nodes.isolate("c")
        with pytest.raises(NoQuorum, match="Nothing was written"), impatient(nodes["a"]):
            await nodes["a"].node.register.change("k", 0, b"one")
        nodes.link_all("c")
        assert await eventually(nodes["b"].node.register) == (0, b"")


async def test_nodes_that_do_not_use_the_register_send_nothing_about_it() -> None:
    async with fleet(quorum_register_hello_s=0.01) as nodes:
        seen: list[messages.Message] = []

        def see(source: str, target: str, message: bytes) -> bytes:
            seen.append(messages.decode(message))
            return message

        nodes.spoil = see
        await nodes["a"].store().space("s").counter("n").add(1)
        await nodes.converged()
        assert seen
        assert not any(isinstance(message, Motion) for message in seen)


async def test_two_nodes_need_each_other() -> None:
    async with fleet("ab") as nodes:
        await voting(nodes, "ab")
        await nodes["a"].node.register.change("k", 0, b"one")
        await nodes.crash("a")
        nodes.start("a", MemoryStorage())
        assert await eventually(nodes["a"].node.register) == (1, b"one")
        await nodes.isolate("a")
        with pytest.raises(NoQuorum), impatient(nodes["b"]):
            await nodes["b"].node.register.read("k")


async def test_a_node_whose_disk_failed_still_asks_the_others() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes["a"].node.register.change("k", 0, b"one")
        nodes["a"].storage.fail_next("write")
        assert await nodes["a"].node.register.change("k", 1, b"two") == (2, b"two")
        assert await nodes["b"].node.register.read("k") == (2, b"two")


async def test_values_beyond_a_bound_are_refused() -> None:
    async with fleet(quorum_register_keys_max=2, quorum_register_value_bytes_max=8, quorum_register_requests_max=1) as nodes:
        register = nodes["a"].node.register
        with pytest.raises(TooLarge, match=r"9 bytes .* Nothing was written"):
            await register.change("k", 0, b"123456789")
        with pytest.raises(InvalidName):
            await register.read("")
        with pytest.raises(InvalidValue):
            await register.change("k", 0, b"", id=b"short")
        for key in "ab":
            await register.change(key, 0, b"1")
        with pytest.raises(TooLarge, match=r"room for 2 keys\. Nothing was written"):
            await register.change("c", 0, b"1")
        under_way = asyncio.create_task(register.read("a"))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="Nothing was written"):
            await register.read("a")
        assert await under_way == (1, b"1")


def single(storage: MemoryStorage, *, seed: int = 1) -> Node:
    return Node(storage, config=Config(), environment=SimulatedEnvironment(seed).environment)


async def test_a_store_without_peers_has_the_same_interface_and_keeps_it_after_a_crash() -> None:
    storage = MemoryStorage()
    node = single(storage)
    assert await node.register.change("k", 0, b"one", id=CHANGE) == (1, b"one")
    with pytest.raises(RegisterChanged):
        await node.register.change("k", 0, b"two")
    left = storage.crash(0)
    with suppress(Exception):
        await node.stop()
    again = single(left, seed=2)
    assert await again.register.change("k", 0, b"one", id=CHANGE) == (1, b"one")
    assert await again.register.read("k") == (1, b"one")
    await again.stop()
    with pytest.raises(ShuttingDown, match="Nothing was written"):
        await again.register.read("k")


async def test_a_copy_of_a_store_without_peers_goes_on_with_what_it_holds() -> None:
    node = single(storage := MemoryStorage())
    await node.register.change("k", 0, b"one")
    copy = single(left := storage.left_by_crash(0), seed=2)
    found = await copy.register.read("k")
    assert (found.version > COUNTS_AHEAD, found.content) == (True, b"one")  # Its original may have used those between.
    assert await copy.register.change("k", found.version, b"two") == (found.version + 1, b"two")
    again = single(left.crash(0), seed=3)
    assert await again.register.read("k") == (found.version + 1, b"two")  # Once for each place.
    with suppress(Exception):
        await copy.stop()
    await node.stop()
    await again.stop()


async def test_a_store_whose_disk_failed_says_so_and_that_nothing_was_written() -> None:
    node = single(storage := MemoryStorage())
    await node.register.change("k", 0, b"one")
    storage.fail_next("write")
    node.register._config = msgspec.structs.replace(node.register._config, quorum_timeout_s=0.3)
    with pytest.raises(NoQuorum, match=r"cannot write to its disk\. Nothing was written"):
        await node.register.change("other", 0, b"two")
    await node.stop()


@pytest.mark.instant_syncs("a member that answers late is asked again")
def test_a_second_change_of_one_node_asks_each_member_once() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            register = nodes["a"].node.register
            await voting(nodes)
            await register.change("k", 0, b"one")
            sent: list[Message] = []
            links = register.links

            def send(node: bytes, message: Message) -> None:
                sent.append(message)
                links.send(node, message)

            register.links = links._replace(send=send)
            assert await register.change("k", 1, b"two") == (2, b"two")
            assert [type(motion) for motion in sent] == [Accept, Accept]
            assert await nodes["b"].node.register.change("k", 2, b"three") == (3, b"three")
            assert await register.change("k", 3, b"four") == (4, b"four")  # Another proposer has been here.

    run(main())  # In virtual time no answer is late: a late one is asked for again.


@pytest.mark.answers("register-is-linearizable")
async def test_a_change_while_no_majority_is_linked_is_not_made() -> None:
    """Although the last one left a lead: a change that goes without a `Prepare` may be made later."""
    async with fleet() as nodes:
        register = nodes["a"].node.register
        await voting(nodes)
        await register.change("k", 0, b"one")
        await nodes.isolate("a")
        with impatient(nodes["a"]), pytest.raises(NoQuorum, match="Nothing was written"):
            await register.change("k", 1, b"two")


async def test_a_node_knows_which_other_one_used_a_key_last() -> None:
    async with fleet() as nodes:
        a, b = nodes["a"].node, nodes["b"].node
        await voting(nodes)
        await b.register.change("k", 0, b"one")
        async with asyncio.timeout(30):
            while a.register.proposer_of("k") != nodes["b"].replicator.identity().node:
                await asyncio.sleep(0.002)
        assert b.register.proposer_of("k") is None
        await a.register.change("k", 1, b"two")
        assert a.register.proposer_of("k") is None


async def test_an_operation_that_never_had_its_turn_wrote_nothing() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes.isolate("a")
        register = nodes["a"].node.register
        with impatient(nodes["a"]):
            first = asyncio.create_task(register.read("k"))
            await asyncio.sleep(0)
            register._config = msgspec.structs.replace(register._config, quorum_timeout_s=0.1)
            with pytest.raises(NoQuorum, match=r"other operations on 'k' came first\. Nothing was written"):
                await register.change("k", 0, b"one")
            with pytest.raises(NoQuorum, match="cannot be reached"):
                await first


async def test_no_vote_leaves_before_it_is_durable() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes.isolate("c")
        votes: list[Vote] = []

        def listen(source: str, _target: str, message: bytes) -> bytes:
            found = messages.decode(messages.unstamped(message)[1])
            if source == "b" and isinstance(found, Vote):
                votes.append(found)
            return message

        nodes.spoil = listen
        nodes["b"].simulated.hold_syncs()
        changing = asyncio.create_task(nodes["a"].node.register.change("new", 0, b"one"))
        await asyncio.sleep(1)
        before = list(votes)
        nodes["b"].simulated.release_syncs()
        assert await changing == (1, b"one")
        assert before == []


async def test_each_run_proposes_under_a_new_name() -> None:
    names: set[bytes] = set()
    storage = MemoryStorage()
    for seed in range(2):
        node = single(storage, seed=seed)
        await node.register.read("k")
        names.add(node.register._ballots.proposer)
        storage = storage.left_by_crash(None)
        await node.stop()
    assert len(names) == 2


async def test_a_lead_is_used_once() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        register = nodes["a"].node.register
        await register.change("k", 0, b"one")
        assert register._lead("k") is not None
        assert register._lead("k") is None


async def test_a_lead_ends_with_its_epoch() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        register = nodes["a"].node.register
        await register.change("k", 0, b"one")
        register.reform(register._acceptor.electorate)
        assert register._lead("k") is None


async def test_a_vote_whose_sync_failed_is_not_sent() -> None:
    async with fleet() as nodes:
        await voting(nodes)
        await nodes.isolate("c")
        votes: list[Vote] = []

        def listen(source: str, _target: str, message: bytes) -> bytes:
            found = messages.decode(messages.unstamped(message)[1])
            if source == "b" and isinstance(found, Vote):
                votes.append(found)
            return message

        nodes.spoil = listen
        nodes["b"].storage.fail_next("sync")
        with pytest.raises(NoQuorum), impatient(nodes["a"]):
            await nodes["a"].node.register.change("new", 0, b"one")
        assert votes == []


async def test_a_register_that_has_not_begun_is_told() -> None:
    async with fleet(quorum_register_found_s=1e6) as nodes:
        assert not any(nodes[name].node.service.status().register_founded for name in "abc")
        await eventually(nodes["a"].node.register)
        await voting(nodes)
        assert all(nodes[name].node.service.status().register_founded for name in "abc")


async def test_an_unused_register_asks_for_no_votes() -> None:
    async with fleet(quorum_register_found_s=1e6) as nodes:
        asked: list[object] = []
        register = nodes["a"].node.register
        register.links = register.links._replace(send=lambda _node, message: asked.append(message))
        register._next_question = 0.0
        register.tick(1e9)
        assert asked == []
        register.found()
        register.tick(2e9)
        await asyncio.sleep(1)
        assert asked != []
