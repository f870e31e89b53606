"""`compare_and_set` on real nodes, in virtual time: one order of all, whatever is cut, crashes or stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from shoal import values
from shoal.cluster import messages
from shoal.cluster.handshake import PEER_PROTOCOL
from shoal.errors import (
    InvalidValue,
    KeyReused,
    LeaseHeld,
    LeaseLost,
    NoQuorum,
    OutcomeUnknown,
    RegisterChanged,
    TooLarge,
    Unavailable,
    Unsupported,
)
from shoal.kinds.register.handle import Register
from shoal.protocol import requests
from shoal.protocol.requests import CompareAndSet, Fenced, ReadRegister, Swap, Term
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.testing.machines import run
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.wiretap import POLL_S
from tests.support.paces import USUAL

NIL = values.encode(None)


def in_fleet(work: Callable[[Fleet], Awaitable[None]], names: str = "abc", **settings: Any) -> None:
    async def main() -> None:
        async with Fleet(names, **{"quorum_timeout_s": 4.0, "quorum_register_retry_s": 0.05, **USUAL, **settings}) as nodes:
            await work(nodes)

    run(main())


def leader(nodes: Fleet, name: str, register: str = "leader") -> Register:
    return nodes[name].store().space("s").register(register)


def request(expected: Any, value: Any) -> CompareAndSet:
    return CompareAndSet("s", "leader", values.encode(expected), values.encode(value))


async def shown(nodes: Fleet, name: str) -> list[Any]:
    reply = await nodes[name].node.session().call(ReadRegister("s", "leader"))
    return [values.decode(sibling.value) for sibling in reply.siblings]


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_of_many_that_expect_the_same_on_all_nodes_one_succeeds() -> None:
    async def work(nodes: Fleet) -> None:
        async def run_for(nth: int) -> object:
            try:
                return (await leader(nodes, "abc"[nth % 3]).compare_and_set(None, f"worker-{nth}")).value
            except RegisterChanged:
                return ""

        won = [each for each in await asyncio.gather(*map(run_for, range(9))) if each]
        assert len(won) == 1
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [won] * 3

    in_fleet(work, quorum_timeout_s=20.0)


def test_counting_through_all_nodes_loses_nothing() -> None:
    async def work(nodes: Fleet) -> None:
        async def count(name: str) -> None:
            register, known = leader(nodes, name, "n"), None
            for _ in range(5):
                while True:
                    try:
                        await register.compare_and_set(known, (known or 0) + 1)
                        break
                    except RegisterChanged:
                        known = await register.get()

        await asyncio.gather(*(count(name) for name in "abcabc"))
        await nodes.converged()
        assert await leader(nodes, "a", "n").get() == 30

    in_fleet(work, quorum_timeout_s=20.0)


def test_another_value_is_named_and_nothing_changes() -> None:
    async def work(nodes: Fleet) -> None:
        set_to = await leader(nodes, "a").compare_and_set(None, "one")
        assert (set_to.value, set_to.siblings) == ("one", ("one",))
        with pytest.raises(RegisterChanged, match="register 'leader' is 'one', not 'two'") as refused:
            await leader(nodes, "b").compare_and_set("two", "three")
        assert refused.value.detail["version"]
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [["one"]] * 3
        with pytest.raises(RegisterChanged, match="is None, not 'x'"):
            await leader(nodes, "b", "never-set").compare_and_set("x", "y")
        assert await leader(nodes, "b", "never-set").siblings() == []

    in_fleet(work)


def test_a_version_stays_while_comparisons_fail() -> None:
    async def work(nodes: Fleet) -> None:
        before = await leader(nodes, "a").compare_and_set(None, "one")
        with pytest.raises(RegisterChanged) as refused:
            await leader(nodes, "b").compare_and_set("two", "three")
        assert refused.value.detail["version"] == before.version

    in_fleet(work)


def test_equal_values_are_equal_in_whichever_order_their_keys_are() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set({"a": 1, "b": [2]}, durability="all")
        await leader(nodes, "b").compare_and_set({"b": [2], "a": 1}, "next")

    in_fleet(work)


def test_without_a_quorum_nothing_is_written() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").compare_and_set(None, "one")
        await nodes.converged()
        await nodes.isolate("a")
        with pytest.raises(NoQuorum) as refused:
            await leader(nodes, "a").compare_and_set("one", "two")
        assert refused.value.written == "no"
        assert await shown(nodes, "a") == ["one"]
        assert (await leader(nodes, "b").compare_and_set("one", "three")).value == "three"

    in_fleet(work)


async def cut_off_after_its_write(nodes: Fleet, name: str, value: str) -> asyncio.Future[Any]:
    """A call that has its lease and has caught up, and whose write stays on its node: it is cut off before it is pushed."""
    member, usual = nodes[name].simulated, nodes.spoil
    made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    issuer = nodes[name].node._database.issuer
    sound = issuer.issue

    def issue(located: Any, key: str | None) -> Any:
        issued = sound(located, key)
        if isinstance(located.request, Swap) and not made.done():
            member.hold_syncs()
            # A push goes out when the sync begins: it does not wait until the wires are cut.
            nodes.spoil = lambda source, target, message: None if source == name else usual(source, target, message)
            made.set_result(None)
        return issued

    issuer.issue = issue  # type: ignore[method-assign]
    late: asyncio.Future[Any] = asyncio.ensure_future(nodes[name].node.session().call(request("base", value), key="k"))
    futures: list[asyncio.Future[Any]] = [made, late]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    assert made.done(), f"the call wrote nothing: {late}"
    await nodes.isolate(name)
    nodes.spoil = usual
    member.release_syncs()
    issuer.issue = sound  # type: ignore[method-assign]
    return late


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_a_write_that_was_not_acknowledged_does_not_come_back_over_a_later_one() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await leader(nodes, "a").compare_and_set("base", "base")
        await nodes.converged()
        late = await cut_off_after_its_write(nodes, "a", "lost")
        with pytest.raises(OutcomeUnknown):
            await late
        assert await shown(nodes, "a") == ["lost"]
        await asyncio.sleep(5)
        assert (await leader(nodes, "b").compare_and_set("base", "kept")).value == "kept"
        nodes.link_all("a")
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [["kept"]] * 3

    in_fleet(work)


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_a_refused_calls_answer_is_not_replaced_from_between() -> None:
    """Two writes were not acknowledged, each made without the other. Once the older one was told, the newer one is void."""

    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await nodes.converged()
        late = [await cut_off_after_its_write(nodes, "a", "older")]
        await asyncio.sleep(5)
        late.append(await cut_off_after_its_write(nodes, "b", "newer"))
        for each in late:
            with pytest.raises(OutcomeUnknown):
                await each
        nodes.link("a", "c")
        nodes.link("c", "a")
        await asyncio.sleep(5)
        with pytest.raises(RegisterChanged, match="is 'older'"):
            await leader(nodes, "c").compare_and_set("other", "x")
        nodes.link_all("b")
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [["older"]] * 3

    in_fleet(work)


async def pushed_and_lost(nodes: Fleet, value: str) -> MemoryStorage:
    """A write of "a" that only "b" has, durably: "a" loses power before its own fsync. Returns the disk of "a"."""
    member, issuer = nodes["a"].simulated, nodes["a"].node._database.issuer
    sound = issuer.issue

    def issue(located: Any, key: str | None) -> Any:
        if isinstance(located.request, Swap):
            member.hold_syncs()
            nodes.spoil = lambda source, target, message: None if "c" in {source, target} and is_push(message) else message
        return sound(located, key)

    issuer.issue = issue  # type: ignore[method-assign]
    late = asyncio.ensure_future(nodes["a"].node.session().call(request("base", value), key="k"))
    async with asyncio.timeout(3.0):
        while await shown(nodes, "b") != [value]:
            await asyncio.sleep(POLL_S)
    assert await shown(nodes, "c") == ["base"]
    await nodes.isolate("b")
    crashing = asyncio.ensure_future(nodes.crash("a"))
    await asyncio.sleep(0.1)
    member.release_syncs()  # Else the thread that syncs would be waited for.
    [ended] = await asyncio.gather(late, return_exceptions=True)
    assert isinstance(ended, BaseException), "it is acknowledged, and on one disk"
    nodes.spoil = lambda source, target, message: message
    return await crashing


def link_both(nodes: Fleet, one: str, other: str) -> None:
    nodes.link(one, other)
    nodes.link(other, one)


@pytest.mark.answers("compare-and-set-is-linearizable")
@pytest.mark.parametrize(("expected", "told", "remains"), [("base", "", "kept"), ("other", "is 'base'", "base")])
def test_a_write_that_its_node_lost_after_its_push_is_void_after_a_later_one(expected: str, told: str, remains: str) -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await nodes.converged()
        nodes.start("a", await pushed_and_lost(nodes, "lost"), linked=False)
        link_both(nodes, "a", "c")
        with pytest.raises(RegisterChanged, match=told) if told else nullcontext():
            await leader(nodes, "c").compare_and_set(expected, "kept")
        link_both(nodes, "a", "b")
        link_both(nodes, "b", "c")
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [[remains]] * 3

    in_fleet(work, quorum_timeout_s=10.0)


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_a_write_that_its_node_lost_after_its_push_stays_once_it_was_told() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await nodes.converged()
        left = await pushed_and_lost(nodes, "lost")
        link_both(nodes, "b", "c")
        with pytest.raises(RegisterChanged, match="is 'lost'"):
            await leader(nodes, "b").compare_and_set("base", "kept")
        await nodes.isolate("b")
        nodes.start("a", left, linked=False)
        link_both(nodes, "a", "c")
        with pytest.raises(RegisterChanged, match="is 'lost'"):
            await leader(nodes, "a").compare_and_set("base", "kept")
        link_both(nodes, "a", "b")
        link_both(nodes, "b", "c")
        await nodes.converged()
        assert (await nodes["a"].node.session().call(request("base", "lost"), key="k")).version
        assert [await shown(nodes, name) for name in "abc"] == [["lost"]] * 3

    in_fleet(work, quorum_timeout_s=10.0)


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_a_repeated_request_whose_write_was_overtaken_is_not_acknowledged() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await nodes.converged()
        late = await cut_off_after_its_write(nodes, "a", "lost")
        with pytest.raises(OutcomeUnknown):
            await late
        await asyncio.sleep(5)
        await leader(nodes, "b").compare_and_set("base", "kept")
        nodes.link_all("a")
        await nodes.converged()
        for name in "abc":
            with pytest.raises(OutcomeUnknown, match="is 'kept'"):
                await nodes[name].node.session().call(request("base", "lost"), key="k")
        assert [await shown(nodes, name) for name in "abc"] == [["kept"]] * 3

    in_fleet(work)


def test_a_repeated_request_counts_once_on_all_nodes() -> None:
    async def work(nodes: Fleet) -> None:
        first = await nodes["a"].node.session().call(request(None, "one"), key="k")
        for name in "abc":
            assert (await nodes[name].node.session().call(request(None, "one"), key="k")).version == first.version
        with pytest.raises(KeyReused):
            await nodes["b"].node.session().call(request(None, "two"), key="k")
        await nodes.converged()
        assert [await shown(nodes, name) for name in "abc"] == [["one"]] * 3

    in_fleet(work)


def test_if_a_node_dies_with_the_lease_others_wait_for_its_end() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await nodes.converged()
        late = await cut_off_after_its_write(nodes, "a", "lost")
        late.cancel()
        await nodes.crash("a")
        assert (await leader(nodes, "b").compare_and_set("base", "next")).value == "next"

    in_fleet(work, quorum_timeout_s=6.0)


def test_a_call_that_is_given_up_leaves_no_lease_behind() -> None:
    async def work(nodes: Fleet) -> None:
        for nth in range(4):
            call = asyncio.ensure_future(leader(nodes, "a").compare_and_set(None, nth))
            await asyncio.sleep(0.002 * nth)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        begun = asyncio.get_running_loop().time()
        value = await leader(nodes, "b").get()
        with suppress(RegisterChanged):
            await leader(nodes, "b").compare_and_set(value, "next")
        assert asyncio.get_running_loop().time() - begun < 1.0, "nobody waited for a lease to end"

    in_fleet(work, quorum_timeout_s=6.0)


def test_a_swap_without_its_lease_is_refused() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").compare_and_set(None, "one")
        forged = Swap("s", "leader", values.encode("one"), values.encode("two"), 99, "ab" * 16)
        with pytest.raises(LeaseLost, match="Nothing was written"):
            await nodes["b"].node.session().call(forged)
        assert await shown(nodes, "a") == ["one"]

    in_fleet(work)


async def test_an_embedded_store_compares_and_sets_and_writes_nothing_if_it_refuses(bench: Bench) -> None:
    register = bench.space.register("leader")
    state = await register.compare_and_set(None, "one", durability="memory")
    assert await register.read() == state
    before = bench.node._database.issuer.operations
    with pytest.raises(RegisterChanged):
        await register.compare_and_set(None, "two")
    assert bench.node._database.issuer.operations == before
    assert (await register.compare_and_set("one", None)).value is None
    assert (await register.compare_and_set(None, "three")).value == "three"
    await register.set("four")
    assert await register.siblings() == ["four"]


async def test_a_set_of_another_handle_is_seen(bench: Bench) -> None:
    one, other = bench.space.register("leader"), bench.space.register("leader")
    await one.get()
    await one.set("one")
    await other.compare_and_set("one", "two")
    with pytest.raises(RegisterChanged):
        await one.compare_and_set("one", "three")


async def test_concurrent_values_are_all_replaced_if_the_latest_is_the_expected_one(bench: Bench) -> None:
    one, other = bench.space.register("leader"), bench.space.register("leader")
    await one.get()
    await other.get()
    await one.set("left")
    await other.set("right")
    with pytest.raises(RegisterChanged, match="is 'right', not 'left'"):
        await one.compare_and_set("left", "x")
    assert (await one.compare_and_set("right", "x")).siblings == ("x",)
    assert await other.siblings() == ["x"]


async def test_bad_input_is_refused_before_anything_is_asked(bench: Bench) -> None:
    session = bench.node.session()
    with pytest.raises(InvalidValue):
        await session.call(CompareAndSet("crew", "leader", b"\xc1", NIL))
    with pytest.raises(TooLarge):
        await session.call(CompareAndSet("crew", "leader", NIL, values.encode(b"x" * (bench.config.request_bytes_max + 1))))
    held = await session.call(requests.AcquireLease("crew", "t", 5000, thread=True))
    with pytest.raises(Unsupported, match="Send it alone"):
        await session.call(Fenced([Term("crew", "t", True, held.fence, held.token)], CompareAndSet("crew", "leader", NIL, NIL)))


def is_push(message: bytes) -> bool:
    return isinstance(messages.decode(messages.unstamped(message)[1]), messages.Push)


@pytest.mark.answers("compare-and-set-is-linearizable")
def test_a_node_that_has_not_heard_of_the_last_value_asks_a_quorum_first() -> None:
    async def work(nodes: Fleet) -> None:
        await leader(nodes, "a").set("base", durability="all")
        await leader(nodes, "c").compare_and_set("base", "one")
        await asyncio.sleep(1)
        # A fetch that is lost without its link would be repeated too late.
        nodes.spoil = lambda source, target, message: None if target == "c" and is_push(message) else message
        await leader(nodes, "a").compare_and_set("one", "two")
        assert await shown(nodes, "c") == ["one"]
        with pytest.raises(RegisterChanged, match="is 'two'"):
            await leader(nodes, "c").compare_and_set("one", "three")

    in_fleet(work)


@pytest.mark.instant_syncs("it says how long calls take, in virtual time")
def test_calls_one_after_another_do_not_wait_for_leases_to_end() -> None:
    async def work(nodes: Fleet) -> None:
        begun = asyncio.get_running_loop().time()
        for nth in range(12):
            await leader(nodes, "abc"[nth // 4]).compare_and_set(nth or None, nth + 1)
        assert asyncio.get_running_loop().time() - begun < 1.0

    in_fleet(work)


@pytest.mark.answers("versions-work-together")
def test_changes_wait_until_older_nodes_are_upgraded() -> None:
    async def work(nodes: Fleet) -> None:
        a, b = nodes["a"].replicator, nodes["b"]
        older = b.identity()._replace(protocol=PEER_PROTOCOL - 1)
        a.linked(older, nodes.wires["a", "b"])
        worklist = nodes["a"].store().space("s").thread("t").worklist("w")
        for refused in (
            leader(nodes, "a").compare_and_set(None, "one"),
            worklist.add(["x"], priority=3),
        ):
            with pytest.raises(Unavailable, match="runs an older version"):
                await refused
        await leader(nodes, "a").set("plain", durability="quorum")
        await worklist.add(["x"])
        with pytest.raises(Unavailable, match="runs an older version"):
            await worklist.claim(ttl=5)
        a.linked(b.identity(), nodes.wires["a", "b"])
        assert (await leader(nodes, "a").compare_and_set("plain", "one")).value == "one"
        assert await worklist.claim(ttl=5, wait=10) is not None

    in_fleet(work)


def without_register(storage: MemoryStorage) -> MemoryStorage:
    """The same data with a register that was never used: as in a restored backup, or a store that gets other members."""
    rows = {key: value for key, value in storage._durable.rows.items() if not key.startswith(keys.meta("register"))}
    return MemoryStorage(rows)


@pytest.mark.parametrize("before", [1, 5])
async def test_a_register_that_begins_anew_counts_past_the_data(open_bench: Opener, before: int) -> None:
    bench, value = open_bench(), None
    for number in range(before):
        await bench.space.register("leader").compare_and_set(value, number)
        value = number
    await bench.node.stop()
    later = open_bench(without_register(bench.storage), seed=2).space.register("leader")
    for number in range(before, before + 3):
        await later.compare_and_set(number - 1, number)
        assert await later.get() == number
    with pytest.raises(RegisterChanged):
        await later.compare_and_set(0, 7)


@pytest.mark.parametrize("before", [1, 3])
async def test_a_thread_under_a_lease_that_counts_anew_is_fenced(open_bench: Opener, before: int) -> None:
    bench = open_bench()
    for number in range(before):
        async with bench.space.thread("t").lease(ttl=30, holder=f"w{number}") as lease:
            last = lease.fence
    await bench.node.stop()
    later = open_bench(without_register(bench.storage), seed=2)
    async with later.space.thread("t").lease(ttl=30, holder="new") as lease:
        assert lease.fence > last
        with pytest.raises(LeaseHeld):
            await later.node.session().call(requests.Save("crew", "t", {}))
