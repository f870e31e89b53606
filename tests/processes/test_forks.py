"""A store in a forked child: an error at once, nothing of the parent's is touched, and a store of its own."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

import shoal
from shoal import forks
from tests.processes.conftest import output_of

PROGRAM = Path(__file__).parent / "forked.py"
REFUSED = "WrongProcess False no"


@pytest.mark.parametrize("face", ["asynchronous", "blocking", "langgraph"])
def test_every_use_in_a_forked_child_is_refused(face: str, where: str) -> None:
    lines, _ = output_of(PROGRAM, face, where)
    uses = [line for line in lines.splitlines() if not line.startswith("child ended")]
    assert len(uses) > 5
    assert [line for line in uses if not line.endswith(REFUSED)] == []
    assert "child ended with 0" in lines


def test_children_end_in_every_way_beside_a_writing_parent(where: str) -> None:
    lines, _ = output_of(PROGRAM, "ending", where)
    assert lines.splitlines() == [
        "return 0",
        "exit 0",
        "raise 0",
        f"in a thread {REFUSED}",
        "child ended with 0",
        "parent goes on",
    ]


def test_a_child_opens_its_own_store(where: str) -> None:
    lines, _ = output_of(PROGRAM, "own", where)
    assert lines.splitlines()[0] == "its own was served"
    assert lines.splitlines()[-1] == "child ended with 0"


async def test_a_child_leaves_the_directory_to_its_parent(tmp_path: Path) -> None:
    lines, _ = output_of(PROGRAM, "own", str(tmp_path / "state"))
    assert "the parent's directory StoreLocked False no" in lines
    async with shoal.open(tmp_path / "state") as store, shoal.open(tmp_path / "state-of-the-child") as child:
        assert await store.space("s").counter("n").value() == 2
        assert await child.space("s").counter("of the child").value() == 1
        assert (await store.space("s").counter("of the child").value()) == 0


IN_A_LOOP = """
import asyncio, os, signal, sys, shoal

async def main(where, way):
    async with (shoal.connect(where) if where.startswith("http") else shoal.open(where)) as store:
        counter = store.space("s").counter("n")
        await counter.add(1)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            if way == "raises":
                raise KeyError("in the child")
            return
        for _ in range(20):
            await asyncio.sleep(0.01)
            await counter.add(1)
        loop = asyncio.get_running_loop()
        ended = await asyncio.wait_for(loop.run_in_executor(None, os.waitpid, pid, 0), 30)
        print(ended == (pid, 256 if way == "raises" else 0))
        print(await counter.add(1))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("way", ["returns", "raises"])
def test_a_child_that_ends_the_loop_leaves_the_parents(way: str, where: str) -> None:
    lines, _ = output_of(IN_A_LOOP, where, way)
    assert lines.splitlines() == ["True", "22"]


CLOSED_BEFORE = """
import os, sys, shoal

with shoal.sync.open(sys.argv[1]) as store:
    store.space("s").counter("n").add(1)
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        with shoal.sync.open(sys.argv[1]) as store:
            store.space("s").counter("n").add(1)
        sys.exit(0)
    print(os.waitpid(pid, 0)[1])
with shoal.sync.open(sys.argv[1]) as store:
    print(store.space("s").counter("n").value())
"""


def test_children_open_what_their_parent_has_closed(tmp_path: Path) -> None:
    lines, _ = output_of(CLOSED_BEFORE, str(tmp_path / "state"))
    assert lines.split() == ["0", "0", "3"]


def test_a_program_that_is_executed_inherits_nothing(tmp_path: Path) -> None:
    program = """
import os, subprocess, sys, shoal
with shoal.sync.open(sys.argv[1]) as store:
    store.space("s").counter("n").add(1)
    shown = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False)
    print(sys.argv[1] in shown.stdout, "socket" in shown.stdout, "eventpoll" in shown.stdout)
"""
    assert output_of(program, str(tmp_path / "state"))[0].split() == ["False", "False", "False"]


def test_a_child_ends_without_the_librarys_destructors(tmp_path: Path) -> None:
    """They would wait for threads that stayed with the parent."""
    program = """
import os, sys, shoal
from shoal.storage import engine
registered = []
class System:
    def __init__(self, *_): pass
    def __getattr__(self, name): return lambda *_: registered.append(name)
engine.ctypes.CDLL, engine.ctypes.cast = System, lambda *_: None
engine.prepare()
engine._forked()
print(registered)
"""
    assert output_of(program, str(tmp_path / "state"))[0].split("\n")[0] == "['on_exit', '__cxa_atexit']"


def test_a_fork_before_the_first_store_changes_nothing(tmp_path: Path) -> None:
    program = """
import os, sys, shoal
from shoal.storage import engine
before, pid = engine.library, os.fork()
if pid == 0:
    with shoal.sync.open(sys.argv[1]) as store:
        store.space("s").counter("n").add(1)
    sys.exit(engine.library is not before)
print(os.waitpid(pid, 0)[1])
"""
    assert output_of(program, str(tmp_path / "state"))[0].split() == ["0"]


class Thing:
    """Something open."""

    disowned = 0

    def disown(self) -> None:
        self.disowned += 1


def test_a_child_disowns_what_is_there_and_what_is_gone_is_forgotten() -> None:
    gc.collect()  # What other tests left open is not counted.
    before = len(forks._open)
    thing, gone = Thing(), Thing()
    for each in (thing, gone):
        forks.disown_in_children(each)
    del each, gone
    gc.collect()
    assert len(forks._open) == before + 1
    if not (child := os.fork()):
        os._exit(thing.disowned)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert thing.disowned == 0


def test_an_object_never_destroyed_has_one_more_reference() -> None:
    thing = Thing()
    before = sys.getrefcount(thing)
    forks.never_destroy(thing)
    assert sys.getrefcount(thing) == before + 1
