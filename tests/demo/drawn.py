"""Draw a course on the real screens, in whatever terminal this runs in: `python -m tests.demo.drawn board`, or `display`."""

from __future__ import annotations

import sys

from rich.console import Console

from shoal.demo.course import Course
from shoal.demo.lookout import Member, View
from shoal.demo.messages import Ready, Resumed, Saved, Writing
from shoal.demo.progress import Progress
from shoal.demo.screen.board import Board
from shoal.demo.screen.display import Display

AGENTS, MODULES = 9, 240
NODES = ["127.0.0.1:40001", "127.0.0.1:40002", "127.0.0.1:40003"]
LONG = "test/test_import/data/package/with/a/[long]/path/submodule.py"


def draw_board() -> None:
    course = Course([MODULES] * AGENTS, nodes=NODES)
    members = [Member(name, f"id{nth}", "linked", 12_345, 67, 0, 1_500, {}) for nth, name in enumerate(NODES)]
    course.note_views([View([members[nth], *members[:nth], *members[nth + 1 :]], digest="") for nth in range(len(NODES))])
    with Board(Console(), course) as board:
        board.say("agents at work")
        for agent in range(AGENTS):
            course.note(Writing(agent, LONG), now_s=0)
            message = Saved(agent, LONG, 200 + agent, "0123456789abcdef", 4, f"id{agent % 3}")
            course.note(message, now_s=1)
            board.saw(message)
        board.saw_kill(course.note_kill(1, now_s=2))
        back = Resumed(4, 204, "0123456789abcdef", "id0", "connection refused")
        course.note(back, now_s=3)
        board.saw(back)


def draw_display() -> None:
    progress = Progress([MODULES] * AGENTS)
    with Display(Console(), progress) as display:
        display.say("agents at work")
        for agent in range(AGENTS):
            message = Saved(agent, LONG, 200 + agent, "0123456789abcdef", 4)
            progress.note(Writing(agent, LONG), now_s=0)
            progress.note(message, now_s=1)
            display.saw(message)
        progress.note_kill(now_s=2)
        display.saw_kill(progress.kills[-1])
        ready = Ready([200 + agent for agent in range(AGENTS)])
        progress.note(ready, now_s=3)
        display.saw(ready)


{"board": draw_board, "display": draw_display}[sys.argv[1]]()
