"""The state of a run, as it follows from the crews' messages and from the nodes' views of each other."""

from __future__ import annotations

from typing import Literal

from shoal.demo.course import Course, Message
from tests.demo.drawn import NODES, member, view_of


def course() -> Course:
    """Five agents, of which the second node has the second and the last."""
    made = Course([5] * 5, nodes=NODES)
    made.note_views([view_of(member(node, operations=node)) for node in range(3)])
    return made


def told(what: Literal["resumed", "writing", "saved"], agent: int, position: int = 0, *, node: int = 1) -> Message:
    return Message(what, agent, position, f"id{position}" if position else "", f"id{node}", "m.py")


def killed() -> Course:
    run = course()
    run.note(told("writing", 1), now_s=0)
    run.note_kill(1, now_s=2)
    return run


def test_each_node_has_every_third_agent() -> None:
    assert [list(crew) for crew in course().crews] == [[0, 3], [1, 4], [2]]


def test_an_embedded_store_has_all_agents_in_one_crew() -> None:
    assert [list(crew) for crew in Course([5] * 3).crews] == [[0, 1, 2]]


def test_a_node_is_known_by_its_id() -> None:
    assert [course().node_of(id) for id in ("id1", "", "id9")] == [1, None, None]


def test_a_module_is_in_the_air_until_its_checkpoint() -> None:
    run = course()
    run.note(told("writing", 1), now_s=0)
    assert run.in_the_air == {1}
    run.note(told("saved", 1, 1), now_s=0)
    assert not run.in_the_air


def test_a_kill_counts_the_writes_of_its_own_crew() -> None:
    run = course()
    for agent in (0, 1, 4):
        run.note(told("writing", agent), now_s=0)
    run.note(told("saved", 4, 1), now_s=1)
    outage = run.note_kill(1, now_s=2)
    assert (outage.done, outage.in_the_air) == (1, 1)


def test_messages_read_after_a_kill_are_no_return() -> None:
    run = killed()
    run.note(told("saved", 1, 1), now_s=3)
    assert run.done == 1
    assert run.outage is not None
    assert run.outage.back_s == {}


def test_an_agent_is_back_when_it_saves_after_resuming() -> None:
    run = killed()
    for agent, position, now_s in [(1, 1, 2.5), (4, 1, 3.5), (4, 2, 9), (0, 1, 9)]:
        run.note(told("resumed", agent, position - 1, node=2), now_s=now_s)
        run.note(told("saved", agent, position, node=2), now_s=now_s)
    assert run.outage is not None
    assert run.outage.back_s == {1: 0.5, 4: 1.5}


def test_a_resumed_agent_begins_where_its_checkpoint_is() -> None:
    run = killed()
    run.note(told("resumed", 1, 3, node=2), now_s=3)  # The message about the third checkpoint was lost.
    assert (run.agents[1].done, run.agents[1].resumed_at, run.node_of(run.agents[1].node)) == (3, [3], 2)
    assert not run.in_the_air


def test_an_agent_without_a_checkpoint_resumes_nothing() -> None:
    run = course()
    run.note(told("resumed", 1), now_s=0)
    assert run.agents[1].resumed_at == []


def test_the_best_informed_peer_tells_how_far_a_node_is_behind() -> None:
    run = course()
    views = [view_of(member(0), member(1, lacks=7), member(2)), view_of(member(1)), view_of(member(2), member(1, lacks=9))]
    run.note_views(views)
    assert [node.behind for node in run.nodes] == [0, 7, 0]


def test_a_silent_node_keeps_its_figures() -> None:
    run = course()
    run.note_views([None, None, None])
    assert [(node.operations, node.state, node.digest) for node in run.nodes] == [(nth, "no answer", "") for nth in range(3)]


def test_a_killed_node_stays_killed_until_it_is_started() -> None:
    run = killed()
    run.note_views([None, None, None])
    assert run.nodes[1].state == "killed"
