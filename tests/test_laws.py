"""Each law that a module's first lines state has a guard: `python -m tests.laws` sees each fail without its line."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.laws import pythons
from tests.laws.guard import ROOT, Guard, guards, laws_of, parsed, without_its_line

GUARDS = guards()


@cache
def stated() -> dict[str, list[str]]:
    """The modules that state laws, and their laws."""
    files = sorted((ROOT / "shoal").rglob("*.py"))
    found = {file.relative_to(ROOT).as_posix(): laws_of(file.read_text()) for file in files}
    return {module: laws for module, laws in found.items() if laws}


@cache
def names_in(file: Path) -> set[str]:
    """The names of the tests in a module."""
    body = ast.parse(file.read_text()).body
    functions = (node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in functions if name.startswith("test_")}


def test_each_module_with_laws_has_guards() -> None:
    guarded = {guard.module for guard in GUARDS}
    assert guarded == stated().keys(), "a new module with a law comes with its guards, in tests/laws/*.laws"


@pytest.mark.parametrize("module", sorted({guard.module for guard in GUARDS}))
def test_each_law_of_a_guarded_module_has_a_guard(module: str) -> None:
    begun = [guard.law for guard in GUARDS if guard.module == module]
    without = [law for law in stated()[module] if not any(law.startswith(words) for words in begun)]
    assert without == [], f"add a guard for each to tests/laws/*.laws: {without}"
    for words in begun:
        assert len({law for law in stated()[module] if law.startswith(words)}) == 1, f"{words!r} begins no law, or several"


@pytest.mark.parametrize("module", sorted({guard.module for guard in GUARDS if guard.test}))
def test_a_guard_names_a_test_and_a_line(module: str) -> None:
    for guard in GUARDS:
        if guard.module == module and guard.test:
            file, _, name = guard.test.partition("::")
            assert name in names_in(ROOT / file), f"{guard.law}: there is no {guard.test}"
            assert without_its_line(guard, (ROOT / guard.at).read_text())


def test_laws_are_read_from_the_first_lines_alone() -> None:
    assert laws_of('"""A module.\n\nLaws:\n- One\n  goes on.\n- Two.\n\nMore.\n"""\n') == ["One goes on.", "Two."]
    assert laws_of('"""A module.\n\nLaw: it is\none.\n"""\n# Laws: none.\n') == ["it is one."]
    assert laws_of('"""A module without any."""\n') == []


def test_a_later_list_is_of_no_laws() -> None:
    later = '"""A module.\n\nLaws:\n\n- One.\n\n- Two\n  goes on.\n\nIts rows:\n- A row.\nNote:\n- Not a law.\n"""\n'
    assert laws_of(later) == ["One.", "Two goes on."]


@pytest.mark.parametrize("block", ["law: a\ntest: b", "test: b\n-c", "law: a\nwhy: b\n-c", "law: a\n-b", "law: a\nbut: b"])
def test_a_guard_of_another_form_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="guard"):
        list(parsed(block))


def test_a_line_that_is_there_twice_is_refused() -> None:
    guard = Guard("m.py", "a", "t.py::test_a", "m.py", "    a()\n", "")
    assert without_its_line(guard, "def f():\n    a()\n    b()\n") == "def f():\n    b()\n"
    for source in ("", "def f():\n    a()\n    a()\n", "def f():\n    a()\n"):
        with pytest.raises(ValueError, match="of 'a'"):
            without_its_line(guard, source)


def test_a_test_of_an_integration_runs_where_its_sdk_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "ENVIRONMENTS", tmp_path)
    monkeypatch.setattr(pythons, "_FOLDERS", {"tests/integrations/sdk": "its-extra"})
    assert pythons.python_of("tests/test_laws.py::test_a") == Path(sys.executable)
    assert pythons.python_of("tests/integrations/test_escaping.py::test_a") == Path(sys.executable)
    assert pythons.python_of("tests/integrations/sdk/test_it.py::test_a") is None
    there = tmp_path / "its-extra" / "bin" / "python"
    there.parent.mkdir(parents=True)
    there.touch()
    assert pythons.python_of("tests/integrations/sdk/test_it.py::test_a") == there
