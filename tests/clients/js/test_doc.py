"""What docs/JAVASCRIPT.md and the client's README show runs as it is written, under Node.js."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.clients.js.conftest import NODE, PATIENCE_S, needs_node
from tests.clients.js.description import CLIENT

HERE = Path(__file__).parent
GUIDE = (HERE.parents[2] / "docs" / "JAVASCRIPT.md").read_text()
SNIPPETS = re.findall(r"^```js\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
(README,) = re.findall(r"^```js\n(.*?)^```$", (CLIENT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
OPENING, *SHOWN = SNIPPETS
MODULES = {"shoal-client": CLIENT / "src" / "index.js", "y-websocket": HERE / "yjs.mjs"}


def program(snippet: str, url: str, *, before: str = "") -> str:
    """The snippet as a module, of the packages as they lie here."""
    text = OPENING + "{\n" + before + snippet + "}\n" if before else snippet
    imports = re.findall(r"^import .*\n", text, re.MULTILINE)
    text = "".join(dict.fromkeys(imports)) + re.sub(r"^import .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("import * as Y from 'yjs'", f"import {{ Y }} from '{(HERE / 'yjs.mjs').as_uri()}'")
    for name, path in MODULES.items():
        text = text.replace(f"from '{name}'", f"from '{path.as_uri()}'")
    # Node.js 20 has no WebSocket.
    socket = f"import {{ WebSocket as Socket }} from '{(HERE / 'ws.mjs').as_uri()}'\nglobalThis.WebSocket = Socket\n"
    return socket + text.replace("http://127.0.0.1:7400", url) + "\nprocess.exit(0)\n"


async def ran(text: str, tmp_path: Path) -> None:
    assert NODE is not None
    path = tmp_path / "snippet.mjs"
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(NODE, str(path), stdout=PIPE, stderr=PIPE)
    try:
        _, complaints = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, complaints.decode()


@needs_node
@pytest.mark.parametrize("snippet", SHOWN, ids=["threads", "watching", "values", "items", "documents", "errors"])
async def test_a_snippet_of_the_guide_runs(snippet: str, open_url: str, tmp_path: Path) -> None:
    # In a store of its own each: a space for each snippet.
    text = program(snippet, open_url, before="const thread = space.thread('t')\n{\nasync function show () { ending.abort() }\n")
    space = f"guide-{SHOWN.index(snippet)}"
    await ran(
        text.replace("store.space('crew')", f"store.space('{space}')").replace("\nprocess.exit(0)", "}\nprocess.exit(0)"),
        tmp_path,
    )


@needs_node
async def test_the_readme_runs_until_its_first_event(open_url: str, tmp_path: Path) -> None:
    text = program(README, open_url).replace("space('crew')", "space('readme')")
    await ran("console.log = () => process.exit(0)\n" + text, tmp_path)


def test_the_guide_names_every_option_with_its_default() -> None:
    defaults = re.search(r"const DEFAULTS = \{(.*?)\}", (CLIENT / "src" / "options.js").read_text(), re.DOTALL)
    assert defaults is not None
    names = re.findall(r"^  (\w+):", defaults[1], re.MULTILINE)
    rows = [line for line in GUIDE.splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(told) == sorted([*names, "fetch", "trace"])
    written = re.findall(r"\b(\d+_\d+)\b", defaults[1])
    assert written
    assert all(number.replace("_", ",") in GUIDE for number in written)
