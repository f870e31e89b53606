"""The verdict finds each planted break, says what broke and where, and finds nothing in a sound trial."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from chaos.evidence import Evidence, Options
from chaos.judge import Figure, Violation, judge
from chaos.ledger import Deed
from simulation.judging.checkers import OBJECTS
from simulation.judging.history import Acknowledged, Event, Failed, History, Invoked, LetGo, Refused, Shown, amount


def figure(name: str, history: History, evidence: Evidence) -> Figure:
    return next(figure for figure in judge(history, evidence).figures if figure.name == name)


def test_a_sound_trial_keeps_every_promise(history: History, evidence: Evidence) -> None:
    verdict = judge(history, evidence)
    assert verdict.violations == []
    assert all(figure.met for figure in verdict.figures)


Plant = Callable[[Evidence], object]


@pytest.mark.answers("node-that-lost-or-invented")
@pytest.mark.parametrize(
    ("plant", "invariant", "culprit"),
    [
        (lambda e: e.founds["n2"].threads["agent-0"].pop("two"), "3", "save 2 of thread agent-0 in space trial two"),
        (lambda e: e.founds["n2"].journals["crew-0"].clear(), "3", "append 3 of journal crew-0 in space trial e-3"),
        (lambda e: e.founds["n2"].documents["crew-0"].remove(6), "3", "edit 6 of document crew-0 in space trial"),
        (lambda e: e.founds["n2"].registers["agent-0"].remove(5), "3", "assign 5 of register agent-0 in space trial"),
        (lambda e: e.founds["n2"].threads["agent-0"].pop("one"), "3a", "save one of thread agent-0 in space trial"),
        (lambda e: e.founds["n2"].counters.update({"crew-0": 2 * amount(4)}), "5", "counter crew-0 in space trial holds 10"),
        (lambda e: e.founds["n2"].counters.pop("crew-0"), "5", "counter crew-0 in space trial holds 0"),
        (
            lambda e: e.founds["n2"].journals["crew-0"].update({"e-4": 3}),
            "6",
            "journal crew-0 in space trial holds 3 more than once",
        ),
        (lambda e: e.founds["n2"].threads["agent-0"].update({"nine": 9}), "6", "thread agent-0 in space trial holds 9"),
        (lambda e: e.founds["n2"].threads["agent-0"].update({"seven": 7}), "13", "save 7 of thread agent-0 in space trial"),
    ],
    ids=["save", "event", "edit", "value", "shown", "double add", "lost add", "double event", "invented", "refused"],
)
def test_lost_and_invented_writes_of_a_node_are_found(
    history: History, evidence: Evidence, plant: Plant, invariant: str, culprit: str
) -> None:
    plant(evidence)
    told = [v for v in judge(history, evidence).violations if v.node == "n2" and v.invariant == invariant]
    assert any(culprit in violation.culprit for violation in told)


def test_a_loss_on_all_nodes_is_found_on_each(history: History, evidence: Evidence) -> None:
    for found in evidence.founds.values():
        found.journals["crew-0"].clear()
    assert {v.node for v in judge(history, evidence).violations if v.invariant == "3"} == {"n1", "n2", "n3"}


@pytest.mark.answers("node-that-lost-or-invented")
@pytest.mark.parametrize(
    ("field", "kind", "held"),
    [
        ("heads", "heads of thread", {"main": ["x"]}),
        ("forms", "content of document", "bb"),
        ("registers", "register", [5]),
        ("counters", "counter", 1),
        ("journals", "journal", {"x": 3}),
    ],
)
def test_nodes_that_differ_are_found(history: History, evidence: Evidence, field: str, kind: str, held: object) -> None:
    getattr(evidence.founds["n3"], field)["other"] = held
    [culprit] = [v.culprit for v in judge(history, evidence).violations if v.what == "replicas differ"]
    assert culprit.startswith(f"{kind} other in space trial: n2 holds 0, n3 1")


@pytest.mark.answers("node-that-lost-or-invented")
@pytest.mark.parametrize(
    "shown",
    [
        Shown("agent-0", "save", "agent-0", ids=["one"], node="n3"),
        Shown("agent-0", "append", "crew-0", numbers=[], node="n3"),
        Shown("agent-0", "add", "crew-0", value=0, node="n3"),
        Shown("agent-0", "edit", "crew-0", numbers=[], node="n3"),
    ],
    ids=lambda shown: shown.kind,
)
def test_a_session_that_goes_back_is_found(events: list[Event], evidence: Evidence, shown: Shown) -> None:
    violations = judge(History([*events, shown]), evidence).violations
    assert [(v.invariant, v.node) for v in violations] == [("7", "")]
    assert violations[0].culprit.startswith(f"agent-0, {shown.kind} of {OBJECTS[shown.kind]} {shown.name} in space trial on n3")


@pytest.mark.parametrize(
    "event",
    [
        Failed(8, "no", "key-reused", "n1"),
        Refused("agent-0", "crew-0", "not-found", "n1"),
        LetGo("agent-0", "crew-0", "bookmark-lost"),
    ],
)
def test_an_error_that_no_fault_explains_is_a_violation(events: list[Event], evidence: Evidence, event: Event) -> None:
    history = History([*events, Invoked(8, "save", "agent-0", "agent-0"), event])
    assert [(v.invariant, v.what) for v in judge(history, evidence).violations] == [
        ("9", "a request was refused for no reason")
    ]


@pytest.mark.parametrize(("fault", "code"), [("full", "storage-full"), ("clock", "clock-wrong"), ("wipe", "catching-up")])
def test_an_error_is_explained_by_its_fault_alone(events: list[Event], evidence: Evidence, fault: str, code: str) -> None:
    history = History([*events, Invoked(8, "save", "agent-0", "agent-0"), Failed(8, "no", code, "n1")])
    assert not judge(history, evidence).kept
    evidence.options = replace(evidence.options, faults=["kill", fault])
    assert judge(history, evidence).kept


def test_a_fault_that_could_not_be_made_is_told(history: History, evidence: Evidence) -> None:
    evidence.skipped = {"full": "no disk can be mounted here"}
    assert figure("skipped", history, evidence).value == "full: no disk can be mounted here"


@pytest.mark.parametrize(("code", "violations"), [("pruned", 0), ("unreachable", 0), ("key-reused", 1)])
def test_a_worker_may_be_told_what_faults_explain(history: History, evidence: Evidence, code: str, violations: int) -> None:
    evidence.deeds.append(Deed("save", "pruned-1", "", 1, "unknown", code, "n1"))
    assert len(judge(history, evidence).violations) == violations


def test_nodes_that_did_not_become_equal_are_a_violation(history: History, evidence: Evidence) -> None:
    evidence.recoveries[0].equal_s = None
    evidence.equal_s = None
    assert judge(history, evidence).violations == [
        Violation("4", "the nodes did not become equal", "n1", "after strike 1"),
        Violation("4", "the nodes did not become equal", "", "at the end"),
    ]


def test_damage_and_an_early_end_are_violations(history: History, evidence: Evidence) -> None:
    evidence.damage["n1"].append("a chain is broken")
    evidence.trouble.append("n3 ended by itself")
    assert [(v.invariant, v.node, v.culprit) for v in judge(history, evidence).violations] == [
        ("9", "", "n3 ended by itself"),
        ("4", "n1", "a chain is broken"),
    ]


def test_an_add_of_unknown_outcome_counts_once_or_not_at_all(events: list[Event], evidence: Evidence) -> None:
    history = History([*events, Invoked(8, "add", "crew-0", "agent-0"), Failed(8, "unknown", "outcome-unknown")])
    assert judge(history, evidence).kept
    for found in evidence.founds.values():
        found.counters["crew-0"] += amount(8)
    assert judge(history, evidence).kept
    for found in evidence.founds.values():
        found.counters["crew-0"] += amount(8)
    assert {v.invariant for v in judge(history, evidence).violations} == {"5"}


# ── figures ───────────────────────────────────────────────────────────────────


def test_agents_that_were_away_too_long_miss_the_figure_and_break_no_promise(history: History, evidence: Evidence) -> None:
    evidence.recoveries[0].back_s = [0.1, 3.5]
    verdict = judge(history, evidence)
    assert verdict.kept
    assert [figure.name for figure in verdict.figures if not figure.met] == ["agents back at work after a kill"]


def test_an_agent_that_never_came_back_is_told(history: History, evidence: Evidence) -> None:
    evidence.recoveries[0].back_s = [0.1, None]
    back = figure("agents back at work after a kill", history, evidence)
    assert not back.met
    assert back.value.endswith("1 never")


def test_a_session_that_is_behind_misses_the_figure_only_where_a_quorum_was_asked_for(
    events: list[Event], evidence: Evidence
) -> None:
    name = "sessions behind, gone on with stale=True"
    assert figure(name, History(events), evidence).met
    quorate = Evidence(options=Options(faults=["kill"], seed=1, durability="quorum"))
    assert not figure(name, History(events), quorate).met
    assert figure(name, History([e for e in events if not isinstance(e, LetGo | Acknowledged | Failed)]), quorate).met
