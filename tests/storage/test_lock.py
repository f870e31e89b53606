from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import StoreLocked, Unsupported
from shoal.storage import layout as lock
from shoal.storage.layout import Holder, StoreLock, read_holder

HOLDER = Holder(pid=4711, host="reef", command="shoal serve", since_ms=1_700_000_000_000)

HOLD = """
import sys
from pathlib import Path
from shoal.storage.layout import Holder, StoreLock
lock = StoreLock.acquire(Path(sys.argv[1]), holder=Holder.this_process(0))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "LOCK"


def hold_elsewhere(path: Path) -> subprocess.Popen[bytes]:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    return other


def kill(other: subprocess.Popen[bytes]) -> None:
    with other:
        other.send_signal(signal.SIGKILL)


def test_a_second_opening_in_the_same_process_is_refused(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    with pytest.raises(StoreLocked):
        StoreLock.acquire(path, holder=HOLDER)
    lock.release()


def test_the_refusal_names_the_holder_and_the_way_out(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    with pytest.raises(StoreLocked) as refused:
        StoreLock.acquire(path, holder=Holder.this_process(0))
    lock.release()
    assert "process 4711 on reef (shoal serve), since 2023-11-14T22:13:20+00:00" in str(refused.value)
    assert "give --url and its address" in str(refused.value)


def test_of_a_program_that_holds_it_the_refusal_names_a_node_for_all(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=replace(HOLDER, command="agent.py"))
    with pytest.raises(StoreLocked, match=f"run `shoal serve --data {path.parent}` and connect"):
        StoreLock.acquire(path, holder=HOLDER)
    lock.release()


def test_a_refused_opener_does_not_overwrite_the_holder(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    with pytest.raises(StoreLocked):
        StoreLock.acquire(path, holder=Holder.this_process(0))
    assert read_holder(path) == HOLDER
    lock.release()


def test_a_released_lock_can_be_taken(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    lock.release()
    lock.release()
    StoreLock.acquire(path, holder=HOLDER).release()


def test_another_process_is_refused_until_kill_9_frees_the_lock(path: Path) -> None:
    other = hold_elsewhere(path)
    try:
        with pytest.raises(StoreLocked, match=f"process {other.pid} on"):
            StoreLock.acquire(path, holder=HOLDER)
    finally:
        kill(other)
    StoreLock.acquire(path, holder=HOLDER).release()


def test_a_program_started_by_the_holder_does_not_inherit_the_lock(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        # Its answer shows that the new program runs: files are closed on the way into it.
        child.stdin.write(b"!")
        child.stdin.flush()
        assert child.stdout.read(1) == b"!"
        lock.release()
        StoreLock.acquire(path, holder=HOLDER).release()
    finally:
        kill(child)


# A library's threads may be alive by then; the child does nothing that they could block.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock_nor_free_it(path: Path) -> None:
    lock = StoreLock.acquire(path, holder=HOLDER)
    said, say = os.pipe()
    wait, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say, b"!")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(said, 1)
        with pytest.raises(StoreLocked):
            StoreLock.acquire(path, holder=HOLDER)
        lock.release()
        StoreLock.acquire(path, holder=HOLDER).release()
    finally:
        os.write(done, b"!")
        os.waitpid(child, 0)
        for descriptor in (said, say, wait, done):
            os.close(descriptor)


def test_the_holder_of_this_process_tells_no_later_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/shoal", "serve", "--token", "secret"])
    assert Holder.this_process(0).command == "shoal serve"


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"pid": 1}'])
def test_an_unreadable_text_in_the_file_is_no_obstacle(path: Path, text: str) -> None:
    path.write_text(text)
    assert read_holder(path) is None
    StoreLock.acquire(path, holder=HOLDER).release()
    assert read_holder(path) == HOLDER


def test_without_flock_nothing_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    with pytest.raises(Unsupported, match="Nothing was opened"):
        StoreLock.acquire(tmp_path / "LOCK", holder=Holder.this_process(0))
    assert not (tmp_path / "LOCK").exists()
