"""An agent that waits: its thread is free for people, it has one driver all the same, and it goes on with what they did."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import shoal
from shoal.client.connection import lasting, waiting
from shoal.crew.crew import AgentStatus
from shoal.crew.declaration import CrewRecord, Declared, Outcome
from shoal.crew.driving import Driving, Stage
from shoal.crew.seat import Record, Seat
from shoal.errors import HeadMoved, LeaseHeld, LeaseLost, Unavailable
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import AcquireLease, ReleaseLease, RenewLeases
from tests.crew.machines import SPACE, TTL_S, Ground, Process, now, on_ground

WRONG, RIGHT = "You owe 120.", "You owe 12."


class Office:
    """Machines whose agent `clerk-1` writes a draft, asks for approval, and sends it; and a person at another node."""

    def __init__(self, ground: Ground, *names: str, **options: Any) -> None:
        self.ground = ground
        self.runs: list[str] = []
        self.sent: list[tuple[str, str]] = []  # The machine, and what it has sent.
        self.thread: Thread = ground.nodes["c"].store().space(SPACE).thread("clerk-1")
        for name in names:
            process = ground.process(name, count=0, node="ab"[len(ground.processes) % 2])
            process.crew.agent("clerk", ttl=TTL_S, **options)(self.clerk)

    async def clerk(self, ctx: shoal.CrewContext) -> None:
        self.runs.append(ctx.machine)
        if "draft" not in ctx.state:
            await ctx.thread.request_approval("please read")  # Before the save: if this is cut off, it is asked again.
            await ctx.checkpoint({"draft": WRONG})
        await ctx.thread.ready()

        async def send() -> None:
            ctx.lease.check()
            assert self.ground.processes[ctx.machine].is_awake
            self.sent.append((ctx.machine, ctx.state["draft"]))

        await ctx.thread.step("send", call=send)
        await ctx.checkpoint({**ctx.state, "sent": True})

    async def asked(self) -> None:
        """Return once the agent waits, and has given its lease back."""
        async with asyncio.timeout(30):
            while (await self.thread.status()).status != "waiting" or (await self.thread.lease().state()).held:
                await asyncio.sleep(0.05)

    async def corrected(self) -> None:
        """A person corrects the draft, tries again while the lease is held, and approves."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.thread.edit({"draft": RIGHT}, by="ana")
                    break
                except LeaseHeld:
                    await asyncio.sleep(0.2)
        await self.thread.approve(by="ana")

    async def agent(self) -> AgentStatus:
        return next(each for each in (await self.ground.status()).agents if each.name == "clerk-1")

    async def over(self) -> None:
        """Return once the draft is sent, and that is recorded."""
        async with asyncio.timeout(120):
            while (await self.agent()).state != "finished":
                await asyncio.sleep(0.2)


def test_a_corrected_draft_is_sent_as_corrected() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        ground.processes["one"].start()
        await office.asked()
        await office.corrected()
        await office.over()
        assert office.sent == [("one", RIGHT)]
        state = (await office.thread.load()).state
        assert state == {"draft": RIGHT, "sent": True}
        saves = [entry.by for entry in await office.thread.audit() if entry.kind == "checkpoint"]
        assert saves == ["clerk-1", "ana", "clerk-1"]

    on_ground(work)


def test_an_agent_that_waits_is_not_started_elsewhere() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one", "two")
        for process in ground.processes.values():
            process.start()
        await office.asked()
        await asyncio.sleep(10 * TTL_S)
        status = await office.agent()
        assert office.runs == [status.machine]
        assert (status.state, status.reason) == ("waiting", "approval: please read")
        await office.corrected()
        await office.over()
        assert office.sent == [(status.machine, RIGHT)]

    on_ground(work)


def test_an_agent_whose_machine_dies_while_it_waits_waits_elsewhere() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one", "two")
        for process in ground.processes.values():
            process.start()
        await office.asked()
        first = office.runs[0]
        await office.thread.edit({"draft": RIGHT}, by="ana")
        ground.processes[first].kill()
        killed_s = now()
        await ground.until(lambda: len(office.runs) == 2)
        assert now() - killed_s < TTL_S + 2
        await office.thread.approve(by="ana")
        await office.over()
        assert office.sent == [({"one": "two", "two": "one"}[first], RIGHT)]

    on_ground(work)


class Striking:
    """Stops a process before or after one of the requests for leases that it sends."""

    def __init__(self, process: Process, nth: int, *, after: bool) -> None:
        self.left = nth
        self._process = process
        self._after = after
        self._call = process.session.call
        process.session.call = self._struck  # type: ignore[method-assign]

    async def _struck(self, request: Any, /, **options: Any) -> Any:
        is_counted = isinstance(request, AcquireLease | ReleaseLease | RenewLeases)
        self.left -= is_counted
        strikes = is_counted and self.left == -1
        if strikes and not self._after:
            self._process.kill()
        try:
            return await self._call(request, **options)
        finally:
            if strikes and self._after:
                self._process.kill()


STOPS = [
    # Every point is tried either way, by `make thorough`; here every second one goes on.
    pytest.param(nth, after, goes_on, marks=[pytest.mark.thorough] * (goes_on != ((nth + after) % 2 == 1)))
    for nth in range(9)
    for after in (False, True)
    for goes_on in (False, True)
]


@pytest.mark.answers("agents-have-one-driver")
@pytest.mark.parametrize(("nth", "after", "goes_on"), STOPS)
def test_a_machine_that_stops_around_a_wait_repeats_no_effect(nth: int, after: bool, goes_on: bool) -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        one = ground.processes["one"].start()
        await ground.until(lambda: bool(office.runs))
        Striking(one, nth, after=after)
        two = Office(ground, "two")
        two.runs, two.sent = office.runs, office.sent
        ground.processes["two"].start()
        await asyncio.sleep(2 * TTL_S)
        if goes_on:
            asyncio.get_running_loop().call_later(0.7 * TTL_S, one.go_on)
        while not office.sent:
            await office.corrected()
            await asyncio.sleep(2 * TTL_S)
        await office.over()
        await asyncio.sleep(2 * TTL_S)
        assert [draft for _, draft in office.sent] == [RIGHT]
        assert (await office.thread.load()).state == {"draft": RIGHT, "sent": True}
        assert not (await office.thread.load()).forked

    on_ground(work)


def test_an_agent_waits_for_a_lease_that_a_person_holds() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one", "two")
        for process in ground.processes.values():
            process.start()
        await office.asked()
        async with office.thread.lease(ttl=TTL_S, holder="ana"):
            await office.thread.approve(by="ana")
            await asyncio.sleep(3 * TTL_S)
            assert not office.sent
            assert (await office.agent()).reason == "its lease, which 'ana' holds"
            await office.thread.edit({"draft": RIGHT}, by="ana")
        await office.over()
        assert office.sent == [(office.runs[0], RIGHT)]
        assert len(office.runs) == 1

    on_ground(work)


def test_an_agent_does_not_wait_for_its_lease_for_ever() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one", "two")
        for process in ground.processes.values():
            process.start()
        await office.asked()
        async with office.thread.lease(ttl=TTL_S, holder="ana"):
            await office.thread.edit({"draft": RIGHT}, by="ana")
            await office.thread.approve(by="ana")
            await asyncio.sleep(15)
            assert (await office.agent()).machine == "ana"
            assert len(office.runs) == 1
        await office.over()
        assert len(office.runs) == 2
        assert [draft for _, draft in office.sent] == [RIGHT]

    on_ground(work, crew_return_s=10.0)


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.05, 0.1])
def test_an_edit_beside_an_approval_is_not_overwritten(after_s: float) -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        ground.processes["one"].start()
        await office.asked()

        async def edit() -> bool:
            await asyncio.sleep(after_s)
            try:
                await office.thread.edit({"note": "soon"}, by="ana")
            except (LeaseHeld, HeadMoved):
                return False
            return True

        _, edited = await asyncio.gather(ground.nodes["b"].store().space(SPACE).thread("clerk-1").approve(), edit())
        await ground.until(lambda: bool(office.sent))
        await asyncio.sleep(10)
        heads = [await office.thread.load(head) for head in (await office.thread.load()).heads]
        assert any("note" in head.state for head in heads) == edited

    on_ground(work)


def test_a_save_that_has_not_seen_a_correction_is_refused() -> None:
    async def work(ground: Ground) -> None:
        refused: list[HeadMoved] = []
        process = ground.process("one", count=0)

        @process.crew.agent("clerk", ttl=TTL_S)
        async def clerk(ctx: shoal.CrewContext) -> None:
            await ctx.checkpoint({"draft": WRONG})
            await ctx.thread.request_approval()
            await ctx.thread.ready()
            try:
                await ctx.checkpoint({"draft": WRONG, "sent": True})
            except HeadMoved as error:
                refused.append(error)
            await ctx.checkpoint({**ctx.state, "sent": True})

        process.start(until_finished=True)
        office = Office(ground)
        await office.asked()
        await office.corrected()
        assert process.task is not None
        await process.task
        assert len(refused) == 1
        assert (await office.thread.load()).state == {"draft": RIGHT, "sent": True}

    on_ground(work)


async def _inbox(ctx: shoal.CrewContext) -> None:
    await ctx.inbox.next()


async def _journal(ctx: shoal.CrewContext) -> None:
    await ctx.thread.journal.wait()


async def _claim(ctx: shoal.CrewContext) -> None:
    await ctx.thread.worklist("w").claim(wait=1000)


async def _lease(ctx: shoal.CrewContext) -> None:
    await ctx.space.lease("deploy", wait=1000).acquire()


async def _watch(ctx: shoal.CrewContext) -> None:
    async for _ in ctx.space.watch(prefix="other"):
        return


async def _sleep(ctx: shoal.CrewContext) -> None:
    async with ctx.waiting():
        await asyncio.sleep(20)


async def _timeout(ctx: shoal.CrewContext) -> None:
    assert await ctx.inbox.next(timeout=20) is None


async def _wait_for(ctx: shoal.CrewContext) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ctx.inbox.next(), 20)


async def _cancelled(ctx: shoal.CrewContext) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(20):
            await ctx.inbox.next()


@pytest.mark.parametrize("wait", [_inbox, _journal, _claim, _lease, _watch, _sleep, _timeout, _wait_for, _cancelled])
def test_each_wait_gives_the_lease_back(wait: Any) -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        fences: list[int] = []
        states: list[dict[str, Any]] = []

        @process.crew.agent("a", ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None:
            await ctx.checkpoint({"n": 1})
            fences.append(ctx.lease.fence)
            await wait(ctx)
            ctx.lease.check()
            fences.append(ctx.lease.fence)
            states.append(ctx.state)
            await ctx.checkpoint({**ctx.state, "n": 2})

        space = ground.nodes["c"].store().space(SPACE)
        async with space.lease("deploy", ttl=TTL_S):
            process.start(until_finished=True)
            await asyncio.sleep(10)
            assert len(fences) == 1
            await space.thread("a-1").edit({"seen": True}, by="ana")
        await space.thread("a-1").inbox.send("go") if wait is _inbox else None
        await space.thread("a-1").journal.append("go")
        await space.thread("a-1").worklist("w").add(["go"])
        await space.thread("other").save({})
        assert process.task is not None
        await process.task
        assert fences[1] > fences[0]
        assert states == [{"n": 1, "seen": True}]
        assert (await space.thread("a-1").load()).state == {"n": 2, "seen": True}

    on_ground(work)


def test_a_task_that_waits_beside_the_function_leaves_it_the_lease() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        fences: set[int] = set()

        @process.crew.agent("a", ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None:
            listening = asyncio.create_task(ctx.inbox.next())
            for n in range(20):
                ctx.lease.check()
                await ctx.checkpoint({"n": n})
                fences.add(ctx.lease.fence)
                await asyncio.sleep(0.5)
            listening.cancel()

        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        assert len(fences) == 1

    on_ground(work)


def test_while_the_function_waits_its_lease_is_not_counted_on() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        checked: list[str] = []

        @process.crew.agent("a", ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None:
            lease = ctx.lease

            async def beside() -> None:
                await asyncio.sleep(5)
                try:
                    lease.check()
                except LeaseLost:
                    checked.append("refused")
                await ctx.thread.update({"beside": True})

            task = asyncio.create_task(beside())
            async with ctx.waiting():
                await asyncio.sleep(10)
            lease.check()
            checked.append("held")
            await task
            assert ctx.state == {"beside": True}

        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        assert checked == ["refused", "held"]

    on_ground(work)


def test_a_drained_machine_hands_an_agent_over_that_waits() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one", "two")
        for process in ground.processes.values():
            process.start()
        await office.asked()
        first = office.runs[0]
        ground.processes[first].crew.drain()
        await ground.until(lambda: len(office.runs) == 2)
        await office.corrected()
        await office.over()
        assert office.sent == [({"one": "two", "two": "one"}[first], RIGHT)]

    on_ground(work)


def test_short_waits_keep_the_lease() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        fences: set[int] = set()

        @process.crew.agent("a", ttl=TTL_S)
        async def a(ctx: shoal.CrewContext) -> None:
            for _ in range(20):
                await ctx.inbox.next(timeout=0.3)
                fences.add(ctx.lease.fence)

        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        assert len(fences) == 1

    on_ground(work)


def test_a_machine_with_an_old_view_does_not_start_an_agent_that_waits() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        ground.processes["one"].start()
        await office.asked()
        store = ground.nodes["b"].store()
        space = store.space(SPACE)
        stage = Stage(store.connection, space, Record(store, space, holder="two"), "two", 1.0, lambda: None)
        async with asyncio.timeout(20):
            await Driving(stage, "clerk-1", office.clerk, 1).run()
        assert office.runs == ["one"]
        await office.corrected()
        await office.over()
        assert office.sent == [("one", RIGHT)]

    on_ground(work)


def test_an_approval_never_overtakes_its_sessions_edit() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        ground.processes["one"].start()
        await office.asked()
        first = ground.nodes["c"].store()
        await ground.nodes.isolate("c")
        await first.space(SPACE).thread("clerk-1").edit({"draft": RIGHT}, by="ana")
        second = ground.nodes["b"].store(first.connection.session.bookmark).space(SPACE).thread("clerk-1")
        with pytest.raises(Unavailable):
            await second.approve(by="ana")
        ground.nodes.link_all("c")
        await second.approve(by="ana")
        await office.over()
        assert office.sent == [("one", RIGHT)]

    on_ground(work)


def test_an_edit_of_a_quorum_is_found_wherever_the_approval_was() -> None:
    async def work(ground: Ground) -> None:
        office = Office(ground, "one")
        ground.processes["one"].start()
        await office.asked()
        await ground.nodes.isolate("b")
        await ground.nodes["c"].store().space(SPACE).thread("clerk-1").edit({"draft": RIGHT}, by="ana", durability="quorum")
        await ground.nodes["b"].store().space(SPACE).thread("clerk-1").approve(by="ana")
        ground.nodes.link_all("b")
        await office.over()
        assert office.sent == [("one", RIGHT)]

    on_ground(work)


def test_a_crew_and_its_threads_tell_the_same_end() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=0)
        ends: list[str] = []

        @process.crew.agent("good", ttl=TTL_S)
        async def good(ctx: shoal.CrewContext) -> None:
            ends.append((await ctx.thread.status()).status)

        @process.crew.agent("bad", ttl=TTL_S, tries=1)
        async def bad(ctx: shoal.CrewContext) -> None:
            raise ValueError("no such page")

        @process.crew.agent("frank", ttl=TTL_S)
        async def frank(ctx: shoal.CrewContext) -> None:
            await ctx.thread.fail("no such customer")

        process.start(until_finished=True)
        assert process.task is not None
        await process.task
        agents = {agent.name: (agent.state, agent.error) for agent in (await ground.status()).agents if agent.name[0] != "w"}
        assert agents == {
            "good-1": ("finished", ""),
            "bad-1": ("failed", "ValueError: no such page"),
            "frank-1": ("failed", "no such customer"),
        }
        space = ground.nodes["c"].store().space(SPACE)
        found = {name: await space.thread(name).status() for name in agents}
        assert {name: (each.status, each.by) for name, each in found.items()} == {
            "good-1": ("done", "good-1"), "bad-1": ("failed", "bad-1"), "frank-1": ("failed", "")
        }  # fmt: skip
        await shoal.Crew(ground.nodes["b"].store(), SPACE).restart("good-1")
        again = ground.process("two", count=0)
        for name, function in (("good", good), ("bad", bad), ("frank", frank)):
            again.crew.agent(name, ttl=TTL_S, tries=1 if name == "bad" else 5)(function)
        again.start(until_finished=True)
        assert again.task is not None
        await again.task
        assert ends == ["running", "running"]

    on_ground(work)


def test_a_machine_that_stands_still_while_it_takes_its_name_tries_again() -> None:
    async def work(ground: Ground) -> None:
        process = ground.process("one", count=1)
        strikes = Striking(process, 0, after=True)
        process.start()
        for _ in range(2):
            await ground.until(lambda: not process.is_awake)
            await asyncio.sleep(10 * TTL_S)
            strikes.left = 0
            process.go_on()
        await ground.until(lambda: not process.is_awake)
        process.go_on()
        await ground.until(lambda: bool(ground.saved))

    on_ground(work)


@pytest.mark.parametrize("stood_s", [0.0, 2 * TTL_S])
def test_a_wait_that_stood_still_for_too_long_ends_the_seat(stood_s: float) -> None:
    async def work(ground: Ground) -> None:
        store = ground.nodes["a"].store()
        connection, space = store.connection, store.space(SPACE)
        uptime = connection.uptime
        seat = await Seat.taken(connection, space, "clerk-1", machine="one", ttl_s=TTL_S)
        assert seat is not None
        async with asyncio.timeout(30):
            wait = seat.waited()
            await wait.__aenter__()
            seat.lasts()
            await asyncio.sleep(5)
            # The process wakes up, and nothing that it does by its clock has come to it yet.
            object.__setattr__(connection, "uptime", lambda: uptime() + stood_s)
            if stood_s:
                with pytest.raises(LeaseLost):
                    await wait.__aexit__(None, None, None)
            else:
                await wait.__aexit__(None, None, None)
                seat.lease.check()
        assert seat.ended.is_set() == bool(stood_s)
        await seat.release()

    on_ground(work)


def test_a_wait_of_an_agent_that_has_ended_meanwhile_ends_the_seat() -> None:
    async def work(ground: Ground) -> None:
        store = ground.nodes["a"].store()
        space = store.space(SPACE)
        ended = CrewRecord(
            agents={"clerk": Declared(count=1, initial=1, version=1, ttl=TTL_S, tries=1)},
            outcomes={"clerk-1": Outcome(state="finished", version=1)},
        )

        async def settled() -> CrewRecord:
            return ended

        seat = await Seat.taken(store.connection, space, "clerk-1", machine="one", ttl_s=TTL_S, settled=settled)
        assert seat is not None
        with pytest.raises(LeaseLost, match="was ended"):
            async with seat.waited():
                seat.lasts()
                await asyncio.sleep(5)
        assert seat.ended.is_set()
        await seat.release()
        assert await space.leases() == []

    on_ground(work)


async def test_outside_of_a_crew_nobody_is_told_of_waits() -> None:
    async with waiting() as nothing:
        lasting()
    assert nothing is None
