"""What docs/PROCESSES.md shows runs as it is written: in workers that were forked or spawned, in cells, loops and threads."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import StoreLocked
from tests.processes.conftest import output_of, serving

TEXT = (Path(__file__).parent.parent / "docs" / "PROCESSES.md").read_text()
SNIPPETS = [textwrap.dedent(found) for found in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)]
NODE = "http://127.0.0.1:7400"


def snippet(words: str) -> str:
    """The only snippet with these words."""
    (found,) = [each for each in SNIPPETS if words in each]
    return found


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run code with `await` at its top, as a notebook does."""
    code = compile(source, "PROCESSES.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return eval(code, names)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    portal = shoal.sync.Portal()
    node = serving(tmp_path / "node")
    yield portal.run(node.__aenter__)
    portal.run(lambda: node.__aexit__(None, None, None))
    portal.close()


def test_every_snippet_is_run_here() -> None:
    calls = [each for each in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(each, ast.Call)]
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "snippet"]
    used = {snippet(words.value) for words in named if isinstance(words, ast.Constant) and isinstance(words.value, str)}
    assert sorted(SNIPPETS) == sorted(used)


async def test_a_store_stays_open_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_cell(snippet('shoal.open("./state")\nawait store'), {"shoal": shoal})
    await asyncio.to_thread(exec, snippet('store = shoal.sync.open("./state")'), {"shoal": shoal})
    async with shoal.open("./state") as store:
        assert await store.space("crew").counter("runs").value() == 2


def test_an_integration_stays_open_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.integrations.langgraph import ShoalSaver

    monkeypatch.chdir(tmp_path)
    exec(snippet("opening.begin()"), {"ShoalSaver": ShoalSaver})
    shoal.sync.open("./state").close()


FORKED = """
import os, signal, sys, types, shoal

parents = shoal.sync.connect({url!r})
parents.space("crew").counter("n").add(1)
{before}
pid = os.fork()
if pid == 0:
    signal.alarm(30)
{child}
    os._exit(0)
print(os.waitpid(pid, 0)[1])
print(parents.space("crew").counter("n").value())
parents.close()
"""


def test_the_hooks_for_gunicorn_serve_a_forked_worker(url: str) -> None:
    before = "app = sys.modules['app'] = types.ModuleType('app')\napp.store = parents\n" + snippet("post_worker_init")
    child = "    post_worker_init(None)\n    app.store.space('crew').counter('n').add(1)\n    worker_exit(None, None)\n"
    assert output_of(FORKED.format(url=url, before=before.replace(NODE, url), child=child))[0].split() == ["0", "2"]


CELERY = """
class Signal:
    def connect(self, call):
        self.call = call
        return call

celery = sys.modules["celery"] = types.ModuleType("celery")
celery.signals = sys.modules["celery.signals"] = types.ModuleType("celery.signals")
celery.signals.worker_process_init, celery.signals.worker_process_shutdown = Signal(), Signal()
"""


def test_the_signals_of_celery_serve_a_forked_worker(url: str) -> None:
    before = CELERY + snippet("from celery.signals")
    child = (
        "    celery.signals.worker_process_init.call(sender=None)\n    store.space('crew').counter('n').add(1)\n"
        "    celery.signals.worker_process_shutdown.call(sender=None)\n"
    )
    assert output_of(FORKED.format(url=url, before=before.replace(NODE, url), child=child))[0].split() == ["0", "2"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_connects_in_its_initializer(method: str, url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys, shoal\nfrom concurrent.futures import ProcessPoolExecutor\n\n"
        + snippet("ProcessPoolExecutor")
        + f"""
if __name__ == "__main__":
    with shoal.sync.connect({url!r}) as parents:
        parents.space("crew").counter("a").add(1)
        print(run({url!r}, ["a", "b", "b"], {method!r})[0], parents.space("crew").counter("b").value())
"""
    )
    assert output_of(program)[0].split() == ["2", "2"]


async def test_a_lifespan_holds_the_store_of_a_worker(url: str) -> None:
    names: dict[str, Any] = {"shoal": shoal, "asynccontextmanager": asynccontextmanager}
    exec(snippet("lifespan").replace(NODE, url), names)
    app = types.SimpleNamespace(state=types.SimpleNamespace())
    async with names["lifespan"](app):
        assert await app.state.store.space("crew").counter("n").add(1) == 1


def test_each_run_opens_its_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"shoal": shoal, "asyncio": asyncio}
    exec(snippet("asyncio.run(work())"), names)
    assert names["twice"]() == [1, 2]


async def test_a_thread_hands_its_call_to_the_loop(tmp_path: Path) -> None:
    names: dict[str, Any] = {"asyncio": asyncio}
    exec(snippet("run_coroutine_threadsafe"), names)
    async with shoal.open(tmp_path) as store:
        assert await asyncio.to_thread(names["from_a_thread"], asyncio.get_running_loop(), store) == 1


async def test_a_cell_that_runs_again_is_told_or_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"shoal": shoal}
    await run_cell(snippet('thread("notes")'), names)
    await names["thread"].save({"n": 1})
    with pytest.raises(StoreLocked, match=r"which opened it at PROCESSES\.md:1"):
        await run_cell(snippet('thread("notes")'), names)
    again = run_cell(snippet('"store" not in globals()'), names)
    if inspect.isawaitable(again):
        await again
    assert (await names["thread"].load()).state == {"n": 1}
    await names["store"].close()


def test_a_signal_closes_in_order(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time, shoal\n"
        + snippet("signal.SIGTERM")
        + f"with shoal.sync.open({str(tmp_path / 'state')!r}) as store:\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(120) == 0
