"""Parts of the workload: what their acts do, what they take note of, and what their judges find."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from msgspec import structs

from shoal import values
from shoal.errors import JournalTrimmed
from shoal.kinds.document.handle.document import Document
from shoal.kinds.items.serving import searches as planning
from shoal.protocol.requests import Durability, Event, Events, ReadJournal
from shoal.protocol.session import Session
from shoal.testing.machines import run
from simulation.execution import execute
from simulation.judging.linearity import Operation
from simulation.judging.obligations import Losses
from simulation.parts import beginnings
from simulation.parts.all import FAMILIES, KINDS, PARTS
from simulation.parts.attic import SETTINGS
from simulation.parts.beginnings import Page
from simulation.parts.branches import Lines
from simulation.parts.courses import BOUNDS, Courses
from simulation.parts.courses import TOLD as COURSE
from simulation.parts.decrees import Decrees
from simulation.parts.documents import Papers
from simulation.parts.elections import Elections
from simulation.parts.erasing import ERASED, Deletion, Erasing, Pruned
from simulation.parts.logs import Line, Logs
from simulation.parts.memory import Items, Written
from simulation.parts.memory import Place as ItemPlace
from simulation.parts.messages import MESSAGES, Messages
from simulation.parts.part import Told, name_of, outlives
from simulation.parts.rooms import Deletion as RoomDeletion
from simulation.parts.rooms import Put, Rooms
from simulation.parts.saves import At
from simulation.parts.sets import Deletion as SetDeletion
from simulation.parts.sets import Sets, Touched
from simulation.parts.spending import OVERSPENT, Budgets, Paid
from simulation.parts.steps import EFFECT, Place, Steps
from simulation.parts.watchers import WATCHED, Watchers
from simulation.parts.worklists import Jobs
from simulation.plan import Act, ActKind, Crash, Cut, Fault, Plan, Restore, Wipe
from simulation.workload.agents import Agents
from simulation.world.client import Client
from simulation.world.cluster import SimulatedCluster
from simulation.world.trace import Trace

T = TypeVar("T")

CALM = Plan(seed=1)
COLD = Plan(seed=1, settings=SETTINGS)
TOLD = Plan(seed=1, settings=BOUNDS)


def scene(work: Callable[[SimulatedCluster, Agents], Awaitable[T]], plan: Plan = CALM) -> T:
    async def main() -> T:
        trace = Trace(asyncio.get_running_loop().time)
        async with SimulatedCluster(plan, trace=trace) as cluster:
            agents = Agents(cluster, plan, trace=trace)
            done = await work(cluster, agents)
            await agents.finish()
            await agents.close()
            return done

    return run(main())


async def carry_out(agents: Agents, kind: ActKind, times: int) -> None:
    for nth in range(times):
        await agents.act(Act(at=2.0 * nth, agent=nth % CALM.agents, kind=kind, repeat=nth % 2 == 0))


async def broken(cluster: SimulatedCluster, agents: Agents, family: str) -> list[str]:
    await cluster.converged()
    client = Client(cluster, ["n2"], name="reader", random=CALM.random_for("reader"))
    try:
        return [violation.invariant for violation in await agents.parts[family].broken(client.session, Losses(CALM))]
    finally:
        await client.session.close()


def deleted(by: str, at_s: float, node: str, durability: Durability = "local") -> Deletion:
    return Deletion(by, at_s, set(), at_s + 0.5, Told(durability, node, at_s + 0.5))


LAST = deleted("mine", 3.0, "n1")


@pytest.mark.answers("seed-94991")
@pytest.mark.parametrize(
    ("deletions", "promised"),
    [
        pytest.param([], True, id="nobody deletes"),
        pytest.param([LAST], True, id="its own session does"),
        pytest.param([deleted("other", 3.0, "n1")], False, id="another session does"),
        pytest.param([deleted("mine", 1.0, "n2"), LAST], True, id="its own session did elsewhere"),
        pytest.param([deleted("other", 1.0, "n1"), LAST], True, id="another did at the same node"),
        pytest.param([deleted("other", 1.0, "n2"), LAST], False, id="another did at a node that had not told this one"),
        pytest.param([deleted("other", 2.8, "n1"), LAST], False, id="another was at it"),
    ],
)
def test_a_write_outlives_a_deletion_that_its_node_knows_of(deletions: list[Deletion], promised: bool) -> None:
    assert outlives("mine", 4.0, Told("local", "n1", 5.0), deletions, Losses(CALM)) is promised


def test_a_write_outlives_no_deletion_that_its_node_may_have_forgotten() -> None:
    lossy = Losses(Plan(seed=1, faults=[Wipe(at=2.0, node="n1")]))
    assert not outlives("mine", 4.0, Told("local", "n1", 5.0), [deleted("other", 1.0, "n1"), LAST], lossy)


def test_copies_outlive_the_deletions_of_copies_whoever_made_them() -> None:
    deletions = [deleted("other", 1.0, "n2", "quorum"), deleted("third", 1.2, "n3", "all")]
    assert outlives("mine", 4.0, Told("quorum", "n1", 5.0), deletions, Losses(CALM))
    assert not outlives("mine", 4.0, Told("local", "n1", 5.0), deletions, Losses(CALM))


@pytest.mark.answers("effects-are-not-repeated", "seed-scenario-of-test-parts-py")
@pytest.mark.parametrize("family", PARTS)
def test_nothing_is_broken_where_nothing_goes_wrong(family: str) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], Agents]:
        for _ in range(2):
            for kind in KINDS[family]:
                await carry_out(agents, kind, 6)
        return await broken(cluster, agents, family), agents

    found, agents = scene(work, {"attic": COLD, "shelf": COLD, "courses": TOLD}.get(family, CALM))
    assert found == []
    assert agents.violations == []
    assert [event for event in agents.history.events if type(event).__name__ == "Refused"] == []


def test_each_kind_belongs_to_one_part() -> None:
    assert sum(len(kinds) for kinds in KINDS.values()) == len(FAMILIES)


def test_acknowledged_writes_are_owed_where_disks_survived() -> None:
    plan = Plan(seed=1, faults=[Wipe(at=5.0, node="n1")])
    assert not Told("local", "n1", 1.0).is_owed(Losses(plan))
    assert Told("local", "n2", 1.0).is_owed(Losses(plan))
    assert Told("quorum", "n1", 1.0).is_owed(Losses(plan))


@pytest.mark.answers("effects-are-not-repeated")
def test_an_effect_of_which_a_node_knows_nothing_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        steps = cast(Steps, agents.parts["steps"])
        await carry_out(agents, "step", 12)
        assert any(steps.effects.values())
        steps.effects[Place(name_of("steps", "a"), "nobody's")].append(99)
        return await broken(cluster, agents, "steps")

    assert scene(work) == [EFFECT]


@pytest.mark.answers("effects-are-not-repeated")
def test_a_step_that_resume_overlooks_though_a_quorum_confirmed_its_answer_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        steps = cast(Steps, agents.parts["steps"])
        await carry_out(agents, "step", 2)
        place = Place(name_of("steps", "a"), "nobody's")
        steps.effects[place].append(99)
        await carry_out(agents, "settle-steps", 1)
        del steps.effects[place]
        return await broken(cluster, agents, "steps")

    assert scene(work) == [EFFECT]


@pytest.mark.answers("seed-385251")
def test_a_step_that_a_human_looked_at_has_no_effect_by_that() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        steps = cast(Steps, agents.parts["steps"])
        await carry_out(agents, "step", 2)
        assert not steps.effects[Place(name_of("steps", "a"), "nobody's")]
        await carry_out(agents, "settle-steps", 1)
        return await broken(cluster, agents, "steps")

    assert scene(work) == []


def test_a_result_that_is_another_than_was_told_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        steps = cast(Steps, agents.parts["steps"])
        await carry_out(agents, "step", 12)
        place, told = next((place, told) for place, told in steps.done.items() if told)
        steps.done[place] = [(-1, told[0][1])]
        return await broken(cluster, agents, "steps")

    assert scene(work) == ["3"]


def test_a_head_that_a_node_has_lost_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        lines = cast(Lines, agents.parts["lines"])
        await carry_out(agents, "save-on-branch", 6)
        saved = lines.books.saved[name_of("lines", "a")]
        saved.append(saved[0]._replace(at=At("00" * 32, saved[0].at.number)))
        return await broken(cluster, agents, "lines")

    assert scene(work) == ["3", "3"]  # Neither a head, nor there at all.


def test_a_state_that_is_not_as_it_was_saved_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        lines = cast(Lines, agents.parts["lines"])
        await carry_out(agents, "save-on-branch", 1)
        lines.books.states[1] = {"number": 1, "log": [1, 2]}
        return await broken(cluster, agents, "lines")

    assert scene(work) == ["10"]


@pytest.mark.answers("erased-data-stays-erased")
def test_erased_data_that_is_shown_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        erasing = cast(Erasing, agents.parts["erasing"])
        await carry_out(agents, "save-erasably", 1)
        name = name_of("erasing", "a")
        told = Told("quorum", "n1", 1.0)
        erasing.threads[name].pruned.append(Pruned({erasing.books.saved[name][0].at.id}, told))
        return await broken(cluster, agents, "erasing")

    assert scene(work) == [ERASED]


@pytest.mark.answers("erased-data-stays-erased")
def test_missing_data_that_nobody_erased_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        erasing = cast(Erasing, agents.parts["erasing"])
        await carry_out(agents, "save-erasably", 1)
        await carry_out(agents, "delete", 1)
        erasing.threads.clear()
        return await broken(cluster, agents, "erasing")

    assert scene(work) == ["3"]


@pytest.mark.answers("seed-40792")
@pytest.mark.parametrize("family", ["erasing", "papers"])
def test_a_deletion_is_over_when_it_is_answered_unless_it_may_have_left_twice(family: str) -> None:
    kind: ActKind = "delete" if family == "erasing" else "delete-paper"

    async def work(cluster: SimulatedCluster, agents: Agents) -> list[bool]:
        await cluster.founded()
        for nth in range(2):
            await agents.act(Act(at=float(nth), agent=0, kind=kind))
        again = asyncio.create_task(agents.act(Act(at=2.0, agent=0, kind=kind)))
        await asyncio.sleep(0.001)
        await agents._clients[0].leave()
        await again
        await agents.act(Act(at=3.0, agent=0, kind=kind))
        await agents.act(Act(at=4.0, agent=0, kind=kind, repeat=True))
        name = name_of(family, "a")
        erasing, papers = cast(Erasing, agents.parts["erasing"]), cast(Papers, agents.parts["papers"])
        deletions = erasing.threads[name].deletions if family == "erasing" else papers.papers[name].deleted
        assert all(each.told is not None for each in deletions)
        return [each.ended_s < float("inf") for each in deletions]

    assert scene(work) == [True, True, False, True, False]


@pytest.mark.answers("seed-100114")
def test_heads_replaced_by_a_single_move_are_known() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[bool]:
        lines = cast(Lines, agents.parts["lines"])
        unsure = []
        await agents.act(Act(at=0.0, agent=0, kind="save-on-branch"))
        for nth in range(2):
            again = asyncio.create_task(agents.act(Act(at=1.0 + nth, agent=0, kind="move-branch")))
            if nth:
                await asyncio.sleep(0.001)
                await agents._clients[0].leave()
            await again
            unsure.append(bool(lines.unsure))
        return unsure

    assert scene(work) == [False, True]


@pytest.mark.answers("messages-are-not-lost")
def test_a_message_that_is_lost_or_waits_again_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        messages = cast(Messages, agents.parts["messages"])
        await carry_out(agents, "send-message", 1)
        name, told = name_of("messages", "a"), Told("quorum", "n1", 1.0)
        messages.taken[name] = dict.fromkeys(messages.sent[name], told)
        messages.sent[name]["00" * 32] = told
        return await broken(cluster, agents, "messages")

    assert scene(work) == [MESSAGES, MESSAGES]


def test_an_item_that_was_put_last_and_is_not_shown_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        items = cast(Items, agents.parts["items"])
        place = ItemPlace(name_of("items", "a"), "nowhere")
        items.written[place].append(Written(7, False, 0.0, 1.0, Told("quorum", "n1", 1.0)))
        return await broken(cluster, agents, "items")

    assert scene(work) == ["3"]


def test_an_item_that_an_index_lacks_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        await carry_out(agents, "put-note", 12)
        await carry_out(agents, "index-notes", 6)
        await cluster.converged()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planning, "_of_value", lambda *_: iter(()))
            patch.setattr(planning, "_gathered", lambda *_: [])
            return await broken(cluster, agents, "searches")

    assert set(scene(work)) == {"10"}


@pytest.mark.answers("budgets-are-not-overspent")
def test_spending_beyond_the_grants_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[list[str]]:
        await carry_out(agents, "spend", 4)
        part = cast(Budgets, agents.parts["budgets"])
        sound = await broken(cluster, agents, "budgets")
        part.spent[name_of("budgets", "a")].append(Paid(1000, Told("local", "n1", 1.0)))
        return [sound, await broken(cluster, agents, "budgets")]

    sound, found = scene(work)
    assert sound == []
    assert set(found) == {OVERSPENT}


@pytest.mark.answers("courses-tell-what-was")
def test_a_course_that_lacks_or_invents_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[list[str]]:
        await carry_out(agents, "grant-told", 3)
        await carry_out(agents, "read-course", 2)
        part, name = cast(Courses, agents.parts["courses"]), name_of("courses", "a")
        sound = await broken(cluster, agents, "courses")
        look = part.looks[name][-1]
        last = look.points[-1]
        found = []
        for wrong in (
            [structs.replace(last, granted=last.granted + 1000)],
            [structs.replace(last, granted=0)],
            [structs.replace(last, spent=5), last],
        ):
            part.looks[name] = [look._replace(points=wrong)]
            found.append(await broken(cluster, agents, "courses"))
        part.looks[name] = [look._replace(points=[last, last]), look._replace(points=[last], begun_s=look.ended_s + 1)]
        return [sound, *found, await broken(cluster, agents, "courses")]

    sound, *found = scene(work, TOLD)
    assert sound == []
    assert [set(each) for each in found] == [{COURSE}] * 4


def test_an_element_that_was_added_last_and_is_no_member_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        await carry_out(agents, "add-to-set", 4)
        part = cast(Sets, agents.parts["sets"])
        part.touched[name_of("sets", "a"), 99].append(Touched("mine", True, 1.0, 2.0, Told("local", "n1", 2.0)))
        return await broken(cluster, agents, "sets")

    assert scene(work) == ["3"]


def test_a_member_that_was_deleted_with_its_set_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], list[str]]:
        await agents.act(Act(at=0.0, agent=0, kind="add-to-set"))
        part = cast(Sets, agents.parts["sets"])
        ((name, _), [touched]) = next(iter(part.touched.items()))
        later = touched.ended_s + 1.0
        part.deleted[name].append(SetDeletion("another", later, later, Told("local", "n1", later)))
        sound = await broken(cluster, agents, "sets")
        part.deleted[name].append(SetDeletion(touched.session, later, later, Told("local", "n1", later)))
        return sound, await broken(cluster, agents, "sets")

    assert scene(work) == ([], ["15"])


def test_a_member_popped_twice_by_one_session_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], list[str]]:
        await carry_out(agents, "add-to-set", 4)
        await carry_out(agents, "pop-from-set", 2)
        part = cast(Sets, agents.parts["sets"])
        sound = await broken(cluster, agents, "sets")
        name = name_of("sets", "a")
        for begun_s in (1.0, 3.0):
            part.popped[name, 99].append(Touched("mine", False, begun_s, begun_s + 1, Told("local", "n1", begun_s + 1)))
        return sound, await broken(cluster, agents, "sets")

    assert scene(work) == ([], ["7"])


@pytest.mark.parametrize("slot", ["set", "map", "user-1", "user-10", "budget"])
def test_lost_or_repeated_edits_of_a_room_are_found(slot: str) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[list[str]]:
        part = cast(Rooms, agents.parts["rooms"])
        await carry_out(agents, "put-in-room", 40)
        [(name, puts)] = part.puts.items()
        put = next(put for put in puts.values() if put.slot == slot)
        found = [await broken(cluster, agents, "rooms")]
        puts[99] = Put(slot, "mine", 1.0, 2.0, Told("local", "n1", 2.0))
        found.append(await broken(cluster, agents, "rooms"))
        del puts[99]
        later = put.ended_s + 1.0
        part.deleted[name].append(RoomDeletion((slot,), put.session, later, later, Told("local", "n1", later)))
        found.append(await broken(cluster, agents, "rooms"))
        return found

    assert scene(work) == [[], ["3"], ["15"]]


@pytest.mark.parametrize("seed", range(4))
def test_a_patch_that_is_sent_again_once_its_root_is_declared_puts_its_note_once(seed: int) -> None:
    acts = [Act(at=1.0 + nth, agent=0, kind="edit-page", repeat=True) for nth in range(6)]
    assert execute(Plan(seed=seed, nodes=1, agents=1, duration_s=8.0, acts=acts)).violations == []


@pytest.mark.answers("watchers-see-each-change-once")
def test_a_change_that_a_watcher_was_told_twice_or_not_at_all_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], list[str], list[str]]:
        await carry_out(agents, "tell", 6)
        await carry_out(agents, "watch", 4)
        part = cast(Watchers, agents.parts["watching"])
        sound = await broken(cluster, agents, "watching")
        watching = next(each for each in part.watching.values() if each.told)
        id = next(iter(watching.told))
        watching.told[id] += 1
        twice = await broken(cluster, agents, "watching")
        del watching.told[id]
        return sound, twice, await broken(cluster, agents, "watching")

    assert scene(work) == ([], [WATCHED], [WATCHED])


def test_a_watcher_whose_bookmark_went_with_a_disk_is_not_owed_the_rest() -> None:
    faults: list[Fault] = [
        Cut(at=1.0, sources=["n1"], targets=["n3", "n2"], for_s=3.0),
        Crash(at=1.0, node="n3", down_s=12.0),
        Restore(at=4.0, node="n2"),
    ]
    kinds: list[tuple[float, int, ActKind]] = [(1.0, 1, "tell"), (3.0, 1, "watch"), (4.0, 0, "tell")]
    acts = [Act(at=at, agent=agent, kind=kind) for at, agent, kind in kinds]
    assert execute(Plan(seed=20810, agents=2, duration_s=5.0, faults=faults, acts=acts)).violations == []


def test_an_item_that_is_lost_or_waits_again_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], list[str], list[str]]:
        await carry_out(agents, "add-job", 6)
        part = cast(Jobs, agents.parts["jobs"])
        sound = await broken(cluster, agents, "jobs")
        thread, key = next(iter(part.added))
        [told, *_] = part.added[thread, key]
        part.added["other", key].append(told)
        lost = await broken(cluster, agents, "jobs")
        del part.added["other", key]
        part.done[thread, key].append(told)
        return sound, lost, await broken(cluster, agents, "jobs")

    assert scene(work) == ([], [MESSAGES], [MESSAGES])


def test_the_judge_looks_for_erased_events_past_what_was_trimmed() -> None:
    """An event that came late is older than some that were trimmed: then the second page of a new reader is refused."""

    class Trimmed:
        async def call(self, request: ReadJournal) -> Events:
            if request.after and not request.skip_trimmed:
                raise JournalTrimmed("the journal was trimmed.", trimmed_ms=0)
            erased = Event("e", None, 0, values.encode({"number": 7}), False, b"c", False)
            return Events([erased] if request.after else [], b"c", more=not request.after)

    part = Logs()
    told = Told("local", "n1", 0.0)
    part.lines["a"].append(Line(7, 0.0, told, erased=told))
    found = asyncio.run(part.broken(cast(Session, Trimmed()), Losses(CALM)))
    assert [violation.invariant for violation in found] == ["15"]


def test_an_event_that_a_reader_was_not_given_is_found_unless_it_was_told_of_a_trim() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[set[str]]:
        found: list[set[str]] = []
        for kind in ("write-log", "read-log", "trim-log", "write-log", "read-log"):
            await carry_out(agents, kind, 6)
        found.append(set(await broken(cluster, agents, "logs")))
        part = cast(Logs, agents.parts["logs"])
        at_s = asyncio.get_running_loop().time()
        part.lines[name_of("logs", "a")].append(Line(99, at_s, Told("local", "n1", at_s)))
        found.append(set(await broken(cluster, agents, "logs")))
        for reader in part.readers[name_of("logs", "a")]:
            reader.since_s = at_s
        return [*found, set(await broken(cluster, agents, "logs"))]

    assert scene(work) == [set(), {"10"}, set()]


@pytest.mark.answers("seed-83047")
def test_a_note_that_is_there_twice_is_excused_only_if_a_mirror_outlived_a_disk() -> None:
    lossy = Losses(Plan(seed=1, faults=[Wipe(at=1.0, node="n1")]))
    mirror = cast(Document, SimpleNamespace(to_py=dict))
    shown = {"body": [{"attributes": {"n": "3"}}] * 2}

    def found(page: Page, losses: Losses) -> bool:
        return any("more often" in what for _, what in beginnings._broken(page, shown, losses))

    sent_again, sent_once = (Page(wrote={3: None}, put=Counter({3: 1}), again=again, mirrors=[mirror]) for again in ({3}, {0}))
    assert not found(sent_again, lossy)
    assert found(sent_again, Losses(CALM))
    assert found(sent_once, lossy)
    assert found(Page(wrote={3: None}, put=Counter({3: 1}), again={3}), lossy)


def test_forgotten_memories_need_not_be_there() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        for kind in ("add-job", "do-job", "forget-jobs", "add-job"):
            await carry_out(agents, kind, 4)
        return await broken(cluster, agents, "jobs")

    assert scene(work) == []


def test_a_decree_that_nobody_made_and_a_read_that_goes_back_are_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        decrees = cast(Decrees, agents.parts["decrees"])
        await carry_out(agents, "change-decree", 3)
        operations = decrees.operations[name_of("decrees", "a")]
        assert {each.outcome for each in operations} <= {"made", "refused", "shown"}
        operations.append(Operation(99, 0, 0.0, 0.1, "denied"))
        operations.append(Operation(0, -1, 0.0, 0.1, "shown", 9, 99))
        return await broken(cluster, agents, "decrees")

    assert set(scene(work)) == {"8"}


def test_an_election_on_a_value_that_another_one_had_replaced_is_found() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        elections = cast(Elections, agents.parts["elections"])
        for kind in ("elect", "ask-who-leads", "elect"):
            await carry_out(agents, kind, 3)
        operations = elections.operations[name_of("elections", "a")]
        made = [each for each in operations if each.outcome == "made"]
        assert len(made) > 1
        assert await broken(cluster, agents, "elections") == []
        now = asyncio.get_running_loop().time()
        operations.append(Operation(99, made[0].expected, now, now, "made"))
        return await broken(cluster, agents, "elections")

    assert set(scene(work)) == {"8"}
