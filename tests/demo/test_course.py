"""What is concluded from the crews' messages, and from what the nodes say of each other."""

from __future__ import annotations

from shoal.demo.course import Course
from shoal.demo.lookout import Member, View, joined
from shoal.demo.messages import Resumed, Saved, Writing

NAMES = ["h:1", "h:2", "h:3"]


def member(node: int, *, lacks: int = 0, ahead: int = 0, operations: int = 0, **vector: int) -> Member:
    return Member(NAMES[node], f"id{node}", "linked", operations, lacks=lacks, ahead=ahead, lag_ms=lacks * 10, vector=vector)


def view(*members: Member) -> View:
    return View(list(members), digest="")


def course() -> Course:
    """Five agents, of which the second node has the second and the last."""
    made = Course([5] * 5, nodes=NAMES)
    made.note_views([view(member(node, operations=node)) for node in range(3)])
    return made


def saved(agent: int, position: int, *, node: int) -> Saved:
    return Saved(agent, f"m{position}.py", position, f"id{position}", 4, f"id{node}")


def test_each_node_has_every_third_agent() -> None:
    assert [list(course().crew(node)) for node in range(3)] == [[0, 3], [1, 4], [2]]


def test_a_node_is_known_by_its_id() -> None:
    assert [course().node_of(id) for id in ("id1", "", "id9")] == [1, None, None]


def test_a_kill_remembers_what_it_interrupted_of_its_own_crew() -> None:
    run = course()
    for agent in (0, 1, 4):
        run.note(Writing(agent, "a.py"), now_s=0)
    run.note(saved(4, 1, node=1), now_s=1)
    outage = run.note_kill(1, now_s=2)
    assert (outage.done, outage.in_the_air, outage.id) == (1, 1, "id1")


def test_earlier_acknowledgements_are_no_return_to_work() -> None:
    run = course()
    outage = run.note_kill(1, now_s=2)
    run.note(saved(1, 1, node=1), now_s=3)
    assert outage.failed_over_s is None


def test_agents_are_back_with_the_last_of_their_first_saves_elsewhere() -> None:
    run = course()
    outage = run.note_kill(1, now_s=2)
    for agent, position, now_s in [(1, 1, 2.5), (4, 1, 3.5), (4, 2, 9), (0, 1, 9)]:
        run.note(saved(agent, position, node=2), now_s=now_s)
    assert outage.back_s == {1: 0.5, 4: 1.5}
    assert outage.failed_over_s == 1.5


def test_an_agent_that_resumed_is_shown_where_it_is_now() -> None:
    run = course()
    run.note(Resumed(1, 3, "abc", "id2", ""), now_s=0)
    assert run.agents[1].resumed_at == [3]
    assert run.node_of(run.at[1]) == 2


def test_a_node_is_as_far_behind_as_the_best_informed_of_its_peers_sees_it() -> None:
    run = course()
    run.note_views([view(member(0), member(1, lacks=7), member(2)), view(member(1)), view(member(2), member(1, lacks=9))])
    assert [node.behind for node in run.nodes] == [0, 7, 0]
    assert run.nodes[1].behind_ms == 70


def test_a_node_that_says_nothing_keeps_its_last_word() -> None:
    run = course()
    run.note_views([None, None, None])
    assert [node.operations for node in run.nodes] == [0, 1, 2]


def test_common_holdings_are_the_maximum_of_each_origin() -> None:
    assert joined([view(member(0, a=3, b=1)), view(member(1, b=5))]) == {"a": 3, "b": 5}


def test_a_node_has_caught_up_once_it_holds_as_many_of_each_origin_and_knows_of_no_more() -> None:
    assert view(member(1, a=3, b=5, c=1), member(0)).covers({"a": 3, "b": 5})
    assert not view(member(1, a=3, b=4, c=9), member(0)).covers({"a": 3, "b": 5})
    assert not view(member(1, a=3, b=5), member(0, ahead=1)).covers({"a": 3, "b": 5})
