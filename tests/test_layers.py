"""The arrows between the layers, as DESIGN draws them: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
ROOT = TOP / "shoal"

# Modules at the top that everyone may import: they import nothing above them.
BASE = {"errors", "names", "config", "values", "version", "schemas"}

# Layer → the other layers of shoal that it may import.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "names": {"errors"},
    "config": {"errors"},
    "values": {"errors"},
    "schemas": {"errors", "names", "values"},
    "crdt": BASE,
    "cluster": BASE | {"crdt"},
    "protocol": {"errors", "names", "crdt"},
    "storage": BASE | {"crdt"},  # For the layout of dots in keys.
    "transport": BASE | {"cluster", "protocol"},
    "node": BASE | {"crdt", "cluster", "protocol", "storage"},
    "workflows": BASE | {"crdt", "protocol"},
    "client": BASE | {"crdt", "protocol", "workflows"},
    "api": BASE | {"protocol", "workflows"},  # Not the client: decision 0045.
    "opening": BASE | {"client", "node", "protocol", "transport"},
    "sync": BASE | {"opening", "protocol"},
    "replies": {"protocol"},
    "public": BASE | {"workflows", "client", "opening", "protocol", "replies", "sync"},
    "integrations": BASE | {"workflows", "client", "opening", "protocol", "sync"},
    "testing": BASE | {"workflows", "crdt", "cluster", "protocol", "storage", "node", "client", "transport", "api"},
    "demo": BASE | {"workflows", "opening", "client", "node", "protocol", "sync"},
    "cli": BASE | {"workflows", "api", "client", "demo", "node", "opening", "protocol", "storage", "sync", "transport"},
}

# Packages beside shoal, which are not installed → the others of them that each may import. Shoal imports none.
OUTSIDE: dict[str, set[str]] = {
    "simulation": set(),
    "chaos": {"simulation"},
}

PURE = {"crdt", "cluster", "protocol", "errors", "names", "config", "version"}
IMPURE_MODULES = {
    "asyncio",
    "time",
    "random",
    "os",
    "socket",
    "logging",
    "uuid",
    "secrets",
    "threading",
    "datetime",
    "aiohttp",
    "rocksdict",
}

# Where time, randomness and threads may be touched: the adapters and the command line.
ADAPTERS = {"node/environment.py"}
AMBIENT = {"time", "random", "uuid", "secrets"}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, wherever in it; `from a import b` gives a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def shoal_layers(path: Path) -> set[str]:
    known = {layer_of(module) for module in modules()}
    parts = (name.split(".") for name in imports_of(path) if name.startswith("shoal."))
    return {names[1] for names in parts if names[1] in known} - {layer_of(path)}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_the_layers_it_may(path: Path) -> None:
    layer = layer_of(path)
    if layer == "__init__":
        return  # The package's front door shows what the layers make.
    assert shoal_layers(path) <= ALLOWED[layer]


def outside() -> list[Path]:
    return sorted(path for name in OUTSIDE for path in (TOP / name).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_imports_nothing_that_is_not_installed(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & (
        OUTSIDE.keys() | {"tests", "benchmarks", "deploy", "examples"}
    )


@pytest.mark.parametrize("path", outside(), ids=lambda path: str(path.relative_to(TOP)))
def test_a_module_beside_the_package_imports_only_those_it_may(path: Path) -> None:
    package = path.relative_to(TOP).parts[0]
    tops = {name.split(".")[0] for name in imports_of(path)}
    assert tops & (OUTSIDE.keys() | {"tests", "benchmarks"}) <= OUTSIDE[package] | {package}


@pytest.mark.parametrize("path", [p for p in modules() if layer_of(p) in PURE], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_touches_no_clock_randomness_or_io(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & IMPURE_MODULES


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if layer_of(p) in {"node", "storage", "transport", "api", "workflows", "client"}],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_time_and_randomness_come_in_as_arguments(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    source = path.read_text()
    if relative not in ADAPTERS:
        assert not {name.split(".")[0] for name in imports_of(path)} & AMBIENT
        assert "urandom" not in source


def test_every_layer_is_in_the_table() -> None:
    assert {layer_of(path) for path in modules()} - {"__init__"} == set(ALLOWED)


def test_the_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from shoal.node import node\n    import time\n")
    assert {"shoal.node", "shoal.node.node", "time"} <= imports_of(planted)
