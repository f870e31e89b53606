"""What docs/DOCUMENTS.md shows runs as it is written, from top to bottom, and gives what it says."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pycrdt

import shoal
from shoal.kinds.document.handle.document import Document
from tests.test_threads_doc import unchecked

DOCUMENT = Path(__file__).parent.parent / "docs" / "DOCUMENTS.md"
TEXT = DOCUMENT.read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def program(snippets: Sequence[str] = SNIPPETS) -> str:
    """The snippets as one coroutine, which checks what its lines give."""
    lines = []
    for line in "".join(snippets).replace(".flush()\n", ".flush(); await agreed(ada, bob)\n").splitlines():
        shown = re.fullmatch(r"( *)(.+?) +# → (.+)", line)
        if shown:
            indent, code, given = shown.groups()
            line = f"{indent}_given = ({code}); assert _given == ({given}), _given"
        lines.append(line)
    return (
        "async def page(store, space):\n"
        + textwrap.indent("\n".join(lines), "    ")
        + "\n    await ada.close(), await bob.close()"
    )


async def agreed(ada: Document, bob: Document) -> None:
    """Until the mirrors have heard of each other."""
    while ada.to_py() != bob.to_py():
        await asyncio.sleep(0)


async def test_the_page_runs_as_it_is_written(tmp_path: Path) -> None:
    there: dict[str, Any] = {"asyncio": asyncio, "pycrdt": pycrdt, "shoal": shoal, "agreed": agreed}
    exec(compile(program(), DOCUMENT.name, "exec"), there)
    async with shoal.open(tmp_path / "state") as store, asyncio.timeout(30):
        await there["page"](store, store.space("crew"))


async def test_its_first_example_runs_a_second_time_over_the_same_store(tmp_path: Path) -> None:
    there: dict[str, Any] = {"asyncio": asyncio, "pycrdt": pycrdt, "shoal": shoal, "agreed": agreed}
    exec(compile(program([unchecked(snippet) for snippet in SNIPPETS[:2]]), DOCUMENT.name, "exec"), there)
    for _ in range(2):
        async with shoal.open(tmp_path / "state") as store, asyncio.timeout(30):
            await there["page"](store, store.space("crew"))


def test_shown_values_are_checked() -> None:
    assert len(SNIPPETS) >= 8
    assert program().count("assert _given") >= 12
