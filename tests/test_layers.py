"""The arrows between the layers, as DESIGN draws them: who may import whom."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

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


@cache
def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
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


def tops_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


def shoal_layers(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports_of(path) if name.startswith("shoal."))
    return {names[1] for names in parts if names[1] in ALLOWED} - {layer_of(path)}


def test_a_module_imports_only_the_layers_it_may() -> None:
    # The package's front door shows what the layers make.
    bound = [path for path in modules() if layer_of(path) != "__init__"]
    beyond = {name_of(path): shoal_layers(path) - ALLOWED[layer_of(path)] for path in bound}
    assert {name: layers for name, layers in beyond.items() if layers} == {}


def outside() -> list[Path]:
    return sorted(path for name in OUTSIDE for path in (TOP / name).rglob("*.py"))


def test_the_package_imports_nothing_that_is_not_installed() -> None:
    elsewhere = OUTSIDE.keys() | {"tests", "benchmarks", "deploy", "examples"}
    assert [name_of(path) for path in modules() if tops_of(path) & elsewhere] == []


def test_a_module_beside_the_package_imports_only_those_it_may() -> None:
    beside = OUTSIDE.keys() | {"tests", "benchmarks"}
    beyond = {}
    for path in outside():
        package = path.relative_to(TOP).parts[0]
        beyond[name_of(path)] = (tops_of(path) & beside) - OUTSIDE[package] - {package}
    assert {name: tops for name, tops in beyond.items() if tops} == {}


def test_a_pure_module_touches_no_clock_randomness_or_io() -> None:
    touched = {name_of(path): tops_of(path) & IMPURE_MODULES for path in modules() if layer_of(path) in PURE}
    assert {name: tops for name, tops in touched.items() if tops} == {}


def test_time_and_randomness_come_in_as_arguments() -> None:
    layers = {"node", "storage", "transport", "api", "workflows", "client"}
    bound = [path for path in modules() if layer_of(path) in layers and str(path.relative_to(ROOT)) not in ADAPTERS]
    assert [name_of(path) for path in bound if tops_of(path) & AMBIENT or "urandom" in path.read_text()] == []


def test_every_layer_is_in_the_table() -> None:
    assert {layer_of(path) for path in modules()} - {"__init__"} == set(ALLOWED)


def test_the_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from shoal.node import node\n    import time\n")
    assert {"shoal.node", "shoal.node.node", "time"} <= imports_of(planted)
