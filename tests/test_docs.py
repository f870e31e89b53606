"""What holds of every page: its links lead somewhere, its Python is Python, and what it names exists."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from shoal import errors
from shoal.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "clients" / "js" / "README.md",
    *sorted((ROOT / "examples").rglob("README.md")),
    ROOT / "CHANGELOG.md",
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@cache  # A page is linked from many places, and most of them name one of its headings.
def anchors(text: str) -> set[str]:
    """The names of a page's headings, as a browser of repositories makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def test_every_file_that_contributors_are_shown_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:shoal|tests|simulation)/[\w/.]+)`", text) + re.findall(r" (tests/[\w/]+\.py)\b", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_of_python_is_python(page: Path) -> None:
    for block in blocks(page.read_text(), "python"):
        inner = textwrap.indent(block.replace("=…", "=..."), "    ")
        ast.parse("async def page():\n" + re.sub(r": …", ": ...", inner))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_and_option_exists(page: Path) -> None:
    lines = [line for block in blocks(page.read_text(), "sh") for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        if line.startswith("shoal "):
            _check(commands(), shlex.split(line, comments=True)[1:], line)


@cache  # It makes all commands anew each time.
def commands() -> Any:
    return typer.main.get_command(app)


def _check(command: Any, words: list[str], line: str) -> None:
    while words and words[0].startswith("-") and hasattr(command, "commands"):  # Options of `shoal` itself.
        option, *words = words
        [parameter] = [each for each in command.params if option in each.opts] or [None]
        assert parameter is not None, line
        words = words if parameter.is_flag else words[1:]
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, line
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
    assert given <= known | {"--help", "-h"}, line


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("CHANGELOG.md",)], ids=NAMES[:-1])
def test_every_error_that_is_raised_in_a_block_exists(page: Path) -> None:
    for block in blocks(page.read_text(), "python"):
        for name in re.findall(r"# raises (\w+)", block):
            assert hasattr(errors, name), name


@pytest.mark.parametrize(
    "wrong", ["frobnicate", "threads --dat ./state", "doc gett plan", "serve -x", "--wait 3 statis", "--wart 3 status"]
)
def test_a_command_that_does_not_exist_is_noticed(wrong: str) -> None:
    with pytest.raises(AssertionError):
        _check(commands(), shlex.split(wrong), wrong)


def test_headings_are_named_as_links_name_them() -> None:
    assert {"embedded", "three-nodes", "kill-your-own-agent"} <= anchors((ROOT / "README.md").read_text())


def test_every_test_that_security_names_exists() -> None:
    """By its file and name; one without a file is in the file that was named last."""
    named: list[tuple[Path, str]] = []
    file = Path()
    for found in re.finditer(r"`([a-z0-9_/]+\.py)?(?:::(test_\w+))?`", (ROOT / "SECURITY.md").read_text()):
        file = file if found[1] is None else ROOT / "tests" / found[1]
        if found[0] != "``":
            named.append((file, found[2] or ""))
    assert len(named) > 30
    missing = [
        f"{file}::{name}" for file, name in named if not file.exists() or (name and f"def {name}(" not in file.read_text())
    ]
    assert missing == []
