"""What the supervisor concludes from its worker's messages."""

from __future__ import annotations

from shoal.demo.messages import Ready, Saved, Writing
from shoal.demo.progress import Progress


def saved(agent: int, position: int) -> Saved:
    return Saved(agent, f"m{position}.py", position, f"id{position}", 4)


def killed_once() -> Progress:
    progress = Progress([5, 5])
    progress.note(Ready([0, 0]), now_s=0)
    progress.note(Writing(0, "a.py"), now_s=1)
    progress.note(saved(1, 1), now_s=2)
    progress.note_kill(now_s=3)
    return progress


def test_a_module_is_in_the_air_until_its_checkpoint() -> None:
    progress = Progress([5, 5])
    progress.note(Writing(1, "a.py"), now_s=0)
    assert progress.in_the_air == {1: "a.py"}
    progress.note(saved(1, 1), now_s=0)
    assert not progress.in_the_air


def test_a_kill_remembers_what_it_interrupted() -> None:
    (kill,) = killed_once().kills
    assert (kill.done, kill.in_the_air) == (1, 1)


def test_actions_of_a_killed_life_count_as_done() -> None:
    progress = killed_once()
    progress.note(saved(0, 1), now_s=4)
    assert progress.done == 2
    assert progress.kills[0].resumed_s is None


def test_time_to_resume_runs_from_the_kill_to_the_next_first_checkpoint() -> None:
    progress = killed_once()
    progress.note(Ready([0, 1]), now_s=5)
    assert progress.kills[0].resumed_s is None
    progress.note(saved(0, 1), now_s=6)
    progress.note(saved(0, 2), now_s=9)
    assert progress.kills[0].resumed_s == 3


def test_a_new_life_begins_with_what_it_found() -> None:
    progress = killed_once()
    progress.note(Ready([1, 1]), now_s=5)  # Agent 0's checkpoint was durable, the message about it was lost.
    assert progress.done == 2
    assert not progress.in_the_air
    assert [agent.resumed_at for agent in progress.agents] == [[1], [1]]


def test_the_first_life_resumes_nothing() -> None:
    progress = Progress([5])
    progress.note(Ready([0]), now_s=0)
    assert progress.agents[0].resumed_at == []
