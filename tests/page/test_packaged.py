"""The files of the page are in the wheel, with the client, which in the source tree is a link."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import page

ROOT = Path(__file__).parents[2]
NAMED = '[project]\nname = "shoal"\nversion = "0"\n'
"""As the build's own tables need it, so that any version of setuptools builds them."""


def copied_by_the_image() -> list[str]:
    """What the Dockerfile copies before it builds the wheel, of which .dockerignore lets all through."""
    before = (ROOT / "Dockerfile").read_text().partition("pip wheel")[0]
    copies = [line.split()[1:-1] for line in before.splitlines() if line.startswith("COPY ")]
    let = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    names = [name for copy in copies for name in copy]
    assert set(names) <= let
    return names


def test_the_wheel_holds_every_file_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="a Python without setuptools builds no wheel")
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in copied_by_the_image():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    tables = (ROOT / "pyproject.toml").read_text().partition("[tool.setuptools.packages")
    (tree / "pyproject.toml").write_text(NAMED + "".join(tables[1:]))
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=tree, capture_output=True, check=True)
    built = tmp_path / "shoal" / "page"
    held = {str(path.relative_to(built)): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    assert {name: held.get(name) for name in page.listed()} == {
        name: file.path.read_bytes() for name, file in page.listed().items()
    }
    assert not (built / "client").is_symlink()


def test_the_client_of_the_page_is_the_one_that_users_have() -> None:
    source = ROOT / "clients" / "js" / "src"
    assert {name.removeprefix("client/") for name in page.listed() if name.startswith("client/")} == {
        file.name for file in source.glob("*.js")
    }


_IMPORTED = re.compile(r"^(?:(?:import|export)[^\n]*?|\}) from '(\.[^']+)'", re.MULTILINE)


def closure(*names: str) -> set[str]:
    """The modules of the page that these import, and those that they import."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            text = page.listed()[name].path.read_text()
            left += [posixpath.normpath(posixpath.join(posixpath.dirname(name), each)) for each in _IMPORTED.findall(text)]
    return found


def test_all_that_the_first_views_import_is_asked_for_at_once() -> None:
    index = page.listed()[page.INDEX].path.read_text()
    asked = re.findall(r'"modulepreload" href="ui/([^"]+)"', index)
    assert {*asked, "app.js"} == closure("app.js", "views/now.js", "views/threads.js")
    assert len(asked) == len(set(asked))


def test_the_modules_of_the_other_views_are_fetched_before_they_are_shown() -> None:
    first = closure("app.js", "views/now.js", "views/threads.js")
    shown = {name for name in page.listed() if re.fullmatch(r"views/\w+\.js", name)}
    later = re.search(r"const LATER = \[(.*?)\]", page.listed()["app.js"].path.read_text(), re.DOTALL)
    assert later is not None
    names = re.findall(r"'([^']+)'", later[1])
    assert set(names) == closure(*shown, "views/shared/document.js") - first
    assert len(names) == len(set(names))
    assert "vendor/codemirror.js" not in closure(*shown)  # It takes long to run, and most views need none of it.


def test_pictures_are_small_and_described() -> None:
    pictures = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    used = dict[str, str]()
    for text in ("README.md", "docs/PAGE.md"):
        used |= {name: alt for alt, name in re.findall(r"!\[([^]]*)]\([a-z/]*images/([^)]+)\)", (ROOT / text).read_text())}
    assert set(used) == pictures
    assert all(len(alt) > 40 for alt in used.values())
    assert [name for name in pictures if (ROOT / "docs" / "images" / name).stat().st_size > 150_000] == []
