"""An agent is killed everywhere, and what it did twice or lost is found."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, NotFound
from shoal.testing import CrashUnsafe, Report, Trial, crash_everywhere
from shoal.testing.machines import Machine

Call = Callable[..., Awaitable[Any]]


async def pay(amount: int, *, key: str | None = None) -> str:
    return f"paid {amount}"


def kinds(trial: Trial) -> set[str]:
    return {problem.kind for problem in trial.problems}


def moments(report: Report) -> list[str]:
    return [trial.crashes[0].moment for trial in report.trials if not trial.with_node]


def bad_moments(report: Report, *, with_node: bool = False) -> list[str]:
    return [trial.crashes[0].moment for trial in report.bad if trial.with_node is with_node]


async def position(store: Store) -> int:
    try:
        step: int = (await store.space("s").thread("t").load()).state["step"]
    except NotFound:
        return 0
    return step


# ── points ────────────────────────────────────────────────────────────────────


def test_a_node_that_loses_power_on_purpose_tells_nobody_to_check_a_disk(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(store: Store) -> None:
        async with store.space("s").thread("t").lease(ttl=3, wait=60):
            await store.space("s").counter("n").add(1, key="k")

    assert any(trial.with_node for trial in crash_everywhere(agent, nodes=3, durability="quorum").trials)
    assert caplog.records == []


def test_a_write_passes_three_points_and_a_read_and_an_effect_two_each() -> None:
    async def agent(store: Store, pay: Call) -> None:
        await store.space("s").counter("n").value()
        await store.space("s").counter("n").add(1, key="k")
        await pay(7)

    assert moments(crash_everywhere(agent, tools={"pay": pay})) == [
        "before read-counter s/n was sent",
        "after the answer to read-counter s/n",
        "before add s/n was sent",
        "after add s/n was carried out, before its answer came",
        "after the answer to add s/n",
        "before pay(7) happened",
        "after pay(7) happened, before its result was used",
    ]


def test_every_point_is_tried_once_alone_and_once_with_the_node() -> None:
    async def agent(store: Store) -> None:
        await store.space("s").counter("n").add(1, key="k")

    report = crash_everywhere(agent)
    assert report.points == 3
    assert [(trial.crashes[0].number, trial.with_node) for trial in report.trials] == [
        (number, with_node) for number in range(3) for with_node in (False, True)
    ]


def test_a_point_names_the_line_of_the_agent() -> None:
    async def agent(store: Store, pay: Call) -> None:
        await pay(7)  # Here.

    crash = crash_everywhere(agent, tools={"pay": pay}).trials[0].crashes[0]
    assert crash.where.startswith("test_crash_everywhere.py:")
    assert crash.where.endswith("await pay(7)  # Here.")


# ── what is found ─────────────────────────────────────────────────────────────


def test_an_effect_that_is_repeated_is_done_twice() -> None:
    async def agent(store: Store, pay: Call) -> None:
        await pay(7)
        await store.space("s").thread("t").save({"step": 1})

    report = crash_everywhere(agent, tools={"pay": pay})
    assert bad_moments(report)[0] == "after pay(7) happened, before its result was used"
    assert kinds(report.bad[0]) == {"twice"}
    with pytest.raises(CrashUnsafe, match=r"twice: pay\(7\): 2 times instead of 1"):
        report.raise_if_bad()


def test_an_effect_that_is_noted_before_it_happens_is_lost() -> None:
    async def agent(store: Store, pay: Call) -> None:
        if not await position(store):
            await store.space("s").thread("t").save({"step": 1})
            await pay(7)

    report = crash_everywhere(agent, tools={"pay": pay})
    assert bad_moments(report) == [
        "after save s/t was carried out, before its answer came",
        "after the answer to save s/t",
        "before pay(7) happened",
    ]
    assert {kind for trial in report.bad for kind in kinds(trial)} == {"lost"}


def test_a_write_without_a_key_counts_again() -> None:
    async def agent(store: Store) -> None:
        await store.space("s").counter("n").add(5)

    (problem,) = crash_everywhere(agent).bad[0].problems
    assert str(problem) == "differs: counter s/n is 10 instead of 5"


def test_an_event_without_a_key_is_there_twice() -> None:
    async def agent(store: Store) -> None:
        await store.space("s").thread("t").journal.append({"b": 1, "a": 2})

    (problem,) = crash_everywhere(agent).bad[0].problems
    assert str(problem) == "twice: {'a': 2, 'b': 1} in the journal of s/t: 2 times instead of 1"


def test_acknowledgements_from_memory_are_lost_with_the_node_only() -> None:
    async def agent(store: Store, pay: Call) -> None:
        if not await position(store):
            await store.space("s").thread("t").save({"step": 1}, durability="memory")
            await pay(7)
            await asyncio.sleep(1)

    report = crash_everywhere(agent, tools={"pay": pay}, keys={"pay": "amount"})
    assert bad_moments(report, with_node=False)[-1] == "before pay(7) happened"
    assert bad_moments(report, with_node=True) == []
    report = crash_everywhere(agent, tools={"pay": pay})
    assert bad_moments(report, with_node=True) == ["after pay(7) happened, before its result was used"]


def test_an_agent_that_saves_its_position_after_keyed_writes_survives() -> None:
    async def agent(store: Store, pay: Call) -> None:
        thread = store.space("s").thread("t")
        found = await thread.resume()
        for step in range(found.state.get("step", 0), 2):
            await pay(step, key=f"step-{step}")
            await store.space("s").counter("n").add(step, key=f"step-{step}")
            await thread.save({"step": step + 1})

    report = crash_everywhere(agent, tools={"pay": pay}, keys={"pay": "key"})
    assert report.ok
    report.raise_if_bad()
    assert "all ended like the run without a crash" in str(report)


@pytest.mark.parametrize("kind", ["thread", "register", "document", "branch", "item"])
def test_a_resume_that_changes_something_is_found(kind: str) -> None:
    async def agent(store: Store) -> None:
        space = store.space("s")
        times = await space.counter("starts").add()
        match kind:
            case "thread":
                await space.thread("t").save({"starts": times, "step": 1})
            case "branch":
                await space.thread("t").save({"step": 1}, branch=f"b{times}")
            case "register":
                await space.register("r").set({"starts": times})
            case "item":
                await space.items.put(("m", "u"), "k", {"starts": times})
            case "document":
                async with await space.document("d") as document:
                    document.map("m")["starts"] = times

    def but_the_counter(name: str, content: Any) -> Any:
        return None if name.startswith("counter") else content

    report = crash_everywhere(agent, normalise=but_the_counter)
    expected = {
        "thread": "thread s/t, branch main, starts is 2 instead of 1",
        "branch": "thread s/t, branch b2 is {'step': 1}; without a crash there is none",
        "register": "register s/r, starts is 2 instead of 1",
        "item": "item s/m.u/k, starts is 2 instead of 1",
        "document": "document s/d, m, starts is 2 instead of 1",
    }
    assert expected[kind] in {problem.text for trial in report.bad for problem in trial.problems}


def test_a_crash_that_only_a_second_one_reveals() -> None:
    async def agent(store: Store, pay: Call) -> None:
        """It knows that it may have crashed once, and takes a third start for one after the payment."""
        if await store.space("s").counter("starts").add() < 3:
            await pay(7)

    def but_the_counter(name: str, content: Any) -> Any:
        return None if name.startswith("counter") else content

    keys = {"pay": "amount"}
    twice = crash_everywhere(agent, tools={"pay": pay}, keys=keys, crashes=2, normalise=but_the_counter)
    assert {len(trial.crashes) for trial in twice.trials} == {1, 2}
    assert {len(trial.crashes) for trial in twice.bad} == {2}
    assert "then before pay(7) happened" in str(twice)


# ── how it ends ───────────────────────────────────────────────────────────────


def test_an_agent_that_raises_when_resumed_is_reported() -> None:
    async def agent(store: Store) -> None:
        if await store.space("s").counter("n").add() > 1:
            raise ValueError("I was here before")

    assert str(crash_everywhere(agent).bad[0].problems[0]) == "raised: ValueError: I was here before"


def test_an_agent_that_waits_for_ever_when_resumed_is_reported() -> None:
    async def agent(store: Store) -> None:
        if await store.space("s").counter("n").add() > 1:
            await asyncio.Event().wait()

    report = crash_everywhere(agent, finishes_within_s=60)
    assert kinds(report.bad[0]) == {"unfinished"}


def test_an_agent_that_spins_when_resumed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def agent(store: Store) -> None:
        while await store.space("s").counter("n").add() > 1:
            while True:
                await asyncio.sleep(0)

    monkeypatch.setattr(sys.modules["shoal.testing.crash_everywhere"], "STEPS_MAX", 3000)
    assert str(crash_everywhere(agent).bad[0].problems[0]) == "unfinished: it had not ended after 3000 turns of the loop"


def test_an_agents_own_error_is_raised() -> None:
    async def agent(store: Store) -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        crash_everywhere(agent)


def test_an_agent_that_does_not_end_without_a_crash_is_refused() -> None:
    async def agent(store: Store) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="60 virtual seconds"):
        crash_everywhere(agent, finishes_within_s=60)


def test_an_agent_that_does_other_things_each_time_is_told_so() -> None:
    begun = []

    async def agent(store: Store) -> None:
        begun.append(1)
        if len(begun) == 1:
            await store.space("s").counter("n").value()

    report = crash_everywhere(agent)
    assert [problem.text for problem in report.bad[0].problems] == [
        "it did not come to that point again: without a crash it does not always do the same"
    ]


# ── death ─────────────────────────────────────────────────────────────────────


def test_all_tasks_of_an_agent_die_at_once_and_none_writes_while_it_dies() -> None:
    async def worker(store: Store, number: int) -> None:
        try:
            await asyncio.sleep(number)
            await store.space("s").counter("n").add(1, key=f"worked-{number}")
        except asyncio.CancelledError:
            await store.space("s").counter("n").add(1000, key=f"dying-{number}")
            raise

    async def agent(store: Store) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(worker(store, number))

    crash_everywhere(agent).raise_if_bad()


def test_an_agent_that_swallows_its_cancellation_dies_all_the_same() -> None:
    async def stubborn(store: Store) -> None:
        for _ in range(10**6):
            try:
                await asyncio.sleep(1)
                await store.space("s").counter("n").add(1)
            except asyncio.CancelledError:
                pass

    async def agent(store: Store) -> None:
        background = asyncio.create_task(stubborn(store))
        await store.space("s").register("r").set(1)
        assert not background.done()

    assert crash_everywhere(agent).ok


def test_an_effect_under_way_happens_though_its_agent_dies() -> None:
    async def slow(what: str) -> None:
        await asyncio.sleep(50)

    async def agent(store: Store, slow: Call) -> None:
        space = store.space("s")
        if await space.counter("starts").add() == 1:
            await asyncio.gather(slow("x"), space.counter("other").add(1, key="k"))

    def but_starts(name: str, content: Any) -> Any:
        return None if name == "counter s/starts" else content

    report = crash_everywhere(agent, tools={"slow": slow}, normalise=but_starts)
    by_moment = {trial.crashes[0].moment: trial for trial in report.trials if not trial.with_node}
    assert by_moment["after the answer to add s/other"].ok  # The slow one was under way.
    assert kinds(by_moment["before slow('x') happened"]) == {"lost"}


def test_hours_of_sleep_take_no_time() -> None:
    async def agent(store: Store) -> None:
        await asyncio.sleep(4 * 3600)
        await store.space("s").register("r").set("rested")

    assert crash_everywhere(agent, finishes_within_s=20 * 3600).ok


# ── nodes ─────────────────────────────────────────────────────────────────────


async def one_step(store: Store) -> None:
    if not await position(store):
        await store.space("s").thread("t").save({"step": 1})


def test_resumed_on_another_node_an_agent_may_miss_what_only_the_first_had() -> None:
    report = crash_everywhere(one_step, nodes=3)
    assert [str(trial.problems[0]) for trial in report.bad] == [
        "differs: thread s/t, branch main is {'concurrent': [{'step': 1}, {'step': 1}]} instead of {'step': 1}"
    ]


def test_writes_of_a_quorum_are_on_the_next_node() -> None:
    assert crash_everywhere(one_step, nodes=3, durability="quorum").ok


# ── determinism, arguments ────────────────────────────────────────────────────


def test_a_seed_gives_one_report_under_any_hash_seed() -> None:
    program = """
import asyncio
from shoal.testing import crash_everywhere

async def send(names): pass

async def agent(store, send):
    await send({"a", "b", "c", "d"})
    await asyncio.gather(*(store.space("s").counter(f"n{i}").add({1, 2}.pop()) for i in range(3)))

print(crash_everywhere(agent, tools={"send": send}))
"""
    reports = {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(reports) == 1
    assert "went wrong" in reports.pop()


def test_the_package_itself_does_not_load_the_testing_kit() -> None:
    program = "import sys, shoal; sys.exit('shoal.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_called_from_a_coroutine_it_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="from a plain function"):
        crash_everywhere(one_step)


def test_arguments_are_checked_before_anything_runs() -> None:
    def plain() -> None: ...

    wrong: list[dict[str, Any]] = [
        {"nodes": 0},
        {"crashes": 9},
        {"finishes_within_s": 0},
        {"tools": {"pay": plain}},
        {"tools": {"pay": pay}, "reads": ["other"]},
        {"tools": {"pay": pay}, "keys": {"pay": "no such argument"}},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInput, match="Nothing was run"):
            crash_everywhere(one_step, **arguments)


def test_a_report_shows_each_group_of_alike_points_once() -> None:
    async def agent(store: Store, pay: Call) -> None:
        await pay(7)
        await store.space("s").counter("n").value()

    lines = str(crash_everywhere(agent, tools={"pay": pay})).splitlines()
    assert lines[0] == "4 points where the agent can be killed, 8 runs: 6 went wrong."
    assert lines[2] == "Killed alone or together with its node"
    assert [a.strip()[:5] for a, b in pairwise(lines) if b.startswith("    →")] == ["after"]
    assert sum("→" in line for line in lines) == 1


def test_machines_draw_what_their_seed_says() -> None:
    async def drawn(seed: int) -> list[bytes]:
        machines = [Machine(name, config=Config(), seed=seed) for name in ("n1:1", "n2:1")]
        return [machine._environment.entropy(8) for machine in machines]

    first, again, other = (asyncio.run(drawn(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({*first, *other}) == 4
