"""Draw a course on the real screen, in whatever terminal this runs in: `python -m tests.demo.drawn nodes`, or `embedded`."""

from __future__ import annotations

import sys

from rich.console import Console

from shoal.demo.course import Course, Message
from shoal.demo.screen import Screen
from shoal.protocol.requests import ClusterView, Member

AGENTS, MODULES = 9, 240
NODES = ["127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"]
LONG = "test/test_import/data/package/with/a/[long]/path/submodule.py"
CHECKPOINT = "0123456789abcdef"


def view_of(*members: Member) -> ClusterView:
    return ClusterView("c", len(members), 2, list(members), "digest", 0, [], 0)


def member(node: int, *, lacks: int = 0, operations: int = 0) -> Member:
    return Member(NODES[node], f"id{node}", "linked", operations, lacks, 0, 0, 0, 0, 0, "", {})


def draw(*, nodes: list[str]) -> None:
    course = Course([MODULES] * AGENTS, nodes=[f"http://{name}" for name in nodes])
    members = [member(number, operations=12_345, lacks=67) for number in range(len(nodes))]
    course.note_views([view_of(members[nth], *members[:nth], *members[nth + 1 :]) for nth in range(len(nodes))])
    with Screen(Console(), course) as screen:
        screen.say("agents at work")
        for agent in range(AGENTS):
            course.note(Message("writing", agent, 0, "", f"id{agent % 3}", LONG), now_s=0)
            saved = Message("saved", agent, 200 + agent, CHECKPOINT, f"id{agent % 3}")
            course.note(saved, now_s=1)
            screen.saw(saved)
        screen.saw_kill(course.note_kill(len(nodes) and 1, now_s=2))
        back = Message("resumed", 4, 204, CHECKPOINT, "id0", reason="Disconnected" if nodes else "start")
        course.note(back, now_s=3)
        screen.saw(back)


if __name__ == "__main__":
    draw(nodes=NODES if sys.argv[1] == "nodes" else [])
