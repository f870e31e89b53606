"""The arrows between the layers, as DESIGN draws them: who may import whom."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from shoal.node import mutation
from shoal.protocol import requests
from shoal.protocol.requests.families import operations

TOP = Path(__file__).parent.parent
ROOT = TOP / "shoal"

# Modules at the top that everyone may import: they import nothing above them.
BASE = {
    *("errors", "forks", "names", "config", "values", "schemas"),
    *("raising", "encryption", "logs", "records"),
}

# Layer → the other layers of shoal that it may import.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "forks": set(),
    "names": {"errors"},
    "encryption": {"errors"},
    "config": {"errors"},
    "raising": {"errors"},
    "logs": {"errors", "records"},
    "records": set(),
    "values": {"errors", "records"},
    "schemas": {"errors", "names", "raising", "records", "values"},
    "crdt": BASE,
    "cluster": BASE | {"crdt"},
    "protocol": {"errors", "names", "records", "crdt"},
    "traces": BASE | {"protocol"},
    "storage": BASE | {"crdt"},  # For the layout of dots in keys.
    "tls": {"errors", "config", "records"},
    "access": {"errors", "logs", "names", "config", "records", "values", "protocol", "schemas"},
    "backup": BASE | {"crdt"},
    "audit": BASE | {"crdt", "cluster", "protocol"},
    "transport": BASE | {"cluster", "protocol", "tls"},
    "node": BASE | {"audit", "backup", "crdt", "cluster", "protocol", "storage"},
    "workflows": BASE | {"crdt", "protocol"},
    "client": BASE | {"crdt", "protocol", "traces", "workflows"},
    "page": {"records"},
    "api": BASE | {"access", "page", "protocol", "traces", "workflows"},  # Not the client: `workflows` has what both share.
    "opening": BASE | {"client", "node", "protocol", "traces", "transport"},
    "sync": BASE | {"client", "opening", "protocol"},
    "replies": {"protocol"},
    "kinds": set(),  # What names a kind's folder; its modules have the layers of ROLES.
    "crew": BASE | {"client", "protocol", "traces", "workflows"},
    "public": BASE | {"workflows", "client", "crew", "opening", "protocol", "replies", "sync"},
    "integrations": BASE | {"workflows", "client", "opening", "protocol", "sync", "traces"},
    "testing": BASE | {"workflows", "crdt", "cluster", "protocol", "storage", "node", "client", "transport", "api"},
    "demo": BASE | {"workflows", "opening", "client", "node", "protocol", "sync"},
    "__main__": {"cli"},
    "cli": BASE
    | {
        "access",
        "audit",
        "backup",
        "workflows",
        "api",
        "client",
        "crew",
        "demo",
        "integrations",
        "node",
        "opening",
        "protocol",
        "storage",
        "sync",
        "tls",
        "traces",
        "transport",
    },
}

# Part of a kind's folder → its layer.
ROLES = {
    "state": "crdt",
    "shared": "crdt",
    "asks": "crdt",
    "requests": "protocol",
    "changes": "crdt",
    "handler": "node",
    "serving": "node",
    "peers": "node",
    "course": "node",
    "flows": "workflows",
    "handle": "client",
}

# Packages beside shoal, which are not installed → the others of them that each may import. Shoal imports none.
OUTSIDE: dict[str, set[str]] = {
    "simulation": set(),
    "chaos": {"simulation"},
}

# Room of the node → the rooms that it may import. Each may also import what stands beside the rooms, except COMPOSED.
ROOMS: dict[str, set[str]] = {
    "collection": set(),
    "watching": {"collection"},
    "verification": {"collection", "snapshots"},
    "writes": {"collection", "watching"},
    "reads": {"watching"},
    "consensus": set(),
    "backup": {"consensus", "peers", "snapshots", "verification"},
    "membership": {"consensus"},
    "spaces": set(),
    "conditions": set(),
    "snapshots": {"collection", "tiering"},
    "tiering": {"collection"},
    "peers": {
        "spaces",
        "snapshots",
        "tiering",
        "collection",
        "consensus",
        "membership",
        "verification",
        "watching",
        "writes",
    },
}

# What puts the rooms together → the rooms that may import it.
COMPOSED: dict[str, set[str]] = {
    "database": {"backup", "reads", "peers", "verification", "snapshots", "tiering", "writes"},
    "service": set(),
    "node": set(),
}

PURE_MODULES = {"crew/declaration.py", "crew/placement.py"}
PURE = {"crdt", "cluster", "protocol", "errors", "names", "config", "raising"}
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

# All that these two may import beside shoal. Of `datetime`, `pathlib`, `uuid` and `zoneinfo` they use the types.
LIBRARIES: dict[str, set[str]] = {
    "values": {
        *(
            "__future__",
            "array",
            "base64",
            "collections",
            "dataclasses",
            "datetime",
            "decimal",
            "difflib",
            "itertools",
            "enum",
            "functools",
            "json",
            "math",
        ),
        *("operator", "pathlib", "re", "struct", "sys", "types", "typing", "uuid", "zoneinfo", "msgpack", "msgspec", "numpy"),
    },
    "schemas": {"__future__", "collections", "json", "re", "sys", "typing", "urllib", "jsonschema_rs", "msgspec", "pydantic"},
}
CLOCKS = {"now", "utcnow", "today", "uuid1", "uuid4", "read_text", "read_bytes", "open"}
"""Attributes of those types that are no longer pure."""

# Where time, randomness and threads may be touched: the adapters and the command line.
ADAPTERS = {"node/environment.py"}
AMBIENT = {"time", "random", "uuid", "secrets"}


@cache
def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def layer_of(path: Path) -> str:
    return layer_in(path.relative_to(ROOT).with_suffix("").parts)


def layer_in(parts: Sequence[str]) -> str:
    """The layer of a module of shoal, by the parts of its name: that of its role, if it is a kind's."""
    if parts[0] != "kinds":
        return parts[0]
    return ROLES.get(parts[2], "kinds") if len(parts) > 2 else "kinds"


def parsed(path: Path) -> ast.Module:
    """The collector would look through each tree again and again while it grows, which takes longer than all the rest."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, wherever they are, and none of their expressions."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from statements(node)


@cache
def imports_of(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, wherever in it; `from a import b` gives a and a.b."""
    found: set[str] = set()
    for node in statements(parsed(path)):
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
    parts = (name.split(".")[1:] for name in imports_of(path) if name.startswith("shoal."))
    return {layer for names in parts if (layer := layer_in(names)) in ALLOWED} - {layer_of(path), "kinds"}


def test_a_module_imports_only_the_layers_it_may() -> None:
    # The package's front door shows what the layers make.
    bound = [path for path in modules() if layer_of(path) != "__init__"]
    beyond = {name_of(path): shoal_layers(path) - ALLOWED[layer_of(path)] for path in bound}
    assert {name: layers for name, layers in beyond.items() if layers} == {}


def test_named_tuples_are_those_that_cost_little() -> None:
    typed = [name_of(path) for path in modules() if "typing.NamedTuple" in imports_of(path)]
    assert typed == ["shoal/records.py"]


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
    touched = {
        name_of(path): tops_of(path) & IMPURE_MODULES
        for path in modules()
        if layer_of(path) in PURE or str(path.relative_to(ROOT)) in PURE_MODULES
    }
    assert {name: tops for name, tops in touched.items() if tops} == {}


def test_time_and_randomness_come_in_as_arguments() -> None:
    layers = {"node", "storage", "transport", "api", "workflows", "client", "crew"}
    bound = [path for path in modules() if layer_of(path) in layers and str(path.relative_to(ROOT)) not in ADAPTERS]
    assert [name_of(path) for path in bound if tops_of(path) & AMBIENT or "urandom" in path.read_text()] == []


def rooms_of(path: Path, package: str, known: Collection[str]) -> set[str]:
    """Of the rooms and modules directly in a package of shoal, those that a file imports."""
    prefix = f"shoal.{package}."
    return {name.removeprefix(prefix).split(".")[0] for name in imports_of(path) if name.startswith(prefix)} & set(known)


def in_rooms(package: str) -> list[Path]:
    return [path for path in modules() if path.is_relative_to(ROOT / package) and path.parent != ROOT / package]


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "node").parts[0]


def test_a_room_of_the_node_imports_only_the_rooms_it_may() -> None:
    beyond = {}
    for path in in_rooms("node"):
        room = room_of(path)
        composed = {name for name, by in COMPOSED.items() if room in by}
        beyond[name_of(path)] = rooms_of(path, "node", ROOMS.keys() | COMPOSED.keys()) - ROOMS[room] - composed - {room}
    assert {name: rooms for name, rooms in beyond.items() if rooms} == {}


def test_the_rooms_of_the_node_have_an_order() -> None:
    assert {room_of(path) for path in in_rooms("node")} == set(ROOMS)
    list(TopologicalSorter(ROOMS).static_order())  # Raises if they import each other in a circle.


PUT_TOGETHER = {"shoal/kinds/thread/handle/thread.py", "shoal/kinds/thread/flows/audit.py"}
"""A thread is made of labels, a journal, worklists and steps, which are kinds of their own: here it shows all of them."""


@pytest.mark.parametrize("layer", ["crdt", "protocol", "workflows", "client"])
def test_the_kinds_have_an_order_in_each_layer(layer: str) -> None:
    """Of two kinds, at most one knows the other, so that each can be read, and tested, after those that it is made of."""
    known: dict[str, set[str]] = {}
    for path in (ROOT / "kinds").rglob("*.py"):
        if layer_of(path) == layer and name_of(path) not in PUT_TOGETHER:
            names = (name.split(".") for name in imports_of(path) if name.startswith("shoal.kinds."))
            others = {parts[2] for parts in names if layer_in(parts[1:]) == layer}
            known.setdefault(path.relative_to(ROOT).parts[1], set()).update(others - {path.relative_to(ROOT).parts[1]})
    assert len(known) > 2
    list(TopologicalSorter(known).static_order())  # Raises if they import each other in a circle.


def test_values_and_schemas_import_only_what_is_pure() -> None:
    pure = [path for path in modules() if layer_of(path) in LIBRARIES]
    beyond = {name_of(path): tops_of(path) - LIBRARIES[layer_of(path)] - {"shoal"} for path in pure}
    assert {name: tops for name, tops in beyond.items() if tops} == {}
    called = {name_of(path): attributes_of(path) & CLOCKS for path in pure}
    assert {name: clocks for name, clocks in called.items() if clocks} == {}


def attributes_of(path: Path) -> set[str]:
    return {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}


def test_a_folder_holds_no_more_modules_than_a_reader_can_keep_in_mind() -> None:
    counts = Counter(path.parent for path in modules() if path.stem != "__init__")
    assert {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > 20} == {}


ASKING = {
    "shoal/kinds/document/serving/documents.py": "what a document's own memory makes of its own changes",
    "shoal/kinds/map/handler.py": "what a map's own memory makes of its own changes",
    "shoal/node/verification/remains.py": "how much a lost operation had added to a counter, for people",
    "shoal/node/peers/read_repair.py": "the save of the one checkpoint that is repaired",
}
"""Modules of the node that ask of which kind a change is, and what for: none of it follows from the change itself."""


def test_only_appliers_ask_of_which_kind_a_change_is() -> None:
    names = {f"{kind.__module__}.{kind.__name__}" for kind in get_args(mutation.Change)}
    asking = {str(path.relative_to(TOP)) for path in modules() if layer_of(path) == "node" and asked_of(path) & names}
    assert asking == ASKING.keys()


def asked_of(path: Path) -> set[str]:
    """The types that `isinstance` and `match` ask for, by their full names."""
    tree = parsed(path)
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    full = {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    calls = [n.args[1] for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "isinstance"]
    cases = [n.cls for n in ast.walk(tree) if isinstance(n, ast.MatchClass)]
    asked = {name.strip() for each in calls + cases for name in ast.unparse(each).strip("()").replace("|", ",").split(",")}
    return {".".join((full.get(first, first), *rest)) for first, *rest in (name.split(".") for name in asked)}


def test_every_layer_is_in_the_table() -> None:
    assert {layer_of(path) for path in modules()} - {"__init__"} == set(ALLOWED)


@pytest.mark.answers("module-that-imports-what-its-layer-may-not")
def test_the_check_sees_a_forbidden_import(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from shoal.node import node\n    import time\n")
    assert {"shoal.node", "shoal.node.node", "time"} <= imports_of(planted)


GENERIC = (
    "service.py",
    "database.py",
    "handler.py",
    "reads/reads.py",
    "writes/issuing.py",
    "writes/idempotency.py",
    "peers/incoming.py",
    "peers/replicator.py",
    "verification/replay.py",
)
"""Modules of the node that serve every request alike."""


def requests_named(path: Path) -> set[str]:
    """The names of requests, or of replies, that a file takes from `shoal.protocol.requests`."""
    tree = list(ast.walk(parsed(path)))
    froms = (node for node in tree if isinstance(node, ast.ImportFrom))
    imported = {alias.name for node in froms if of_requests(node.module or "") for alias in node.names}
    of_module = (node for node in tree if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return imported | {node.attr for node in of_module if node.value.id == "requests"}  # type: ignore[attr-defined]


def of_requests(module: str) -> bool:
    """Whether a module is one of requests."""
    parts = module.split(".")
    return module.startswith(requests.__name__) or (parts[1:2] == ["kinds"] and parts[3:4] == ["requests"])


def test_code_that_serves_every_request_names_none() -> None:
    single = {kind.__name__ for kind in operations()} - {"Batch", "Import", "MultiRead"}  # These are made of requests.
    named = {name: requests_named(ROOT / "node" / name) & single for name in GENERIC}
    assert {name: kinds for name, kinds in named.items() if kinds} == {}
