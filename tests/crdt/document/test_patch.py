"""JSON Patch: RFC 6902 by the letter, against an obvious twin, and as edits that merge."""

from __future__ import annotations

import copy
import json
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Conflict, InvalidName, InvalidValue, RootConflict, ShoalError, TooLarge
from shoal.kinds.document.state.editing import VALUES_MAX
from shoal.kinds.document.state.live import EMPTY, LiveDocument
from shoal.kinds.document.state.patch import OPERATIONS_MAX, patch
from tests.support.examples import examples

START: dict[str, Any] = {"m": {"a": 1, "b": [1, 2, {"c": "x"}], "d/e": None}, "l": ["x", "y"], "t": "hé😀b"}


def live(content: dict[str, Any] = START) -> LiveDocument:
    document = LiveDocument(bytes_max=1 << 22, roots_max=16)
    run(document, [{"op": "add", "path": f"/{name}", "value": value} for name, value in content.items()], client_id=1)
    return document


def run(document: LiveDocument, operations: Any, *, client_id: int = 2) -> Any:
    patched = patch(document, json.dumps(operations).encode(), client_id=client_id)
    document.integrate(patched.update, patched.roots)
    return document.to_json()


def after(*operations: dict[str, Any]) -> Any:
    return run(live(), list(operations))


def op(name: str, path: str, **members: Any) -> dict[str, Any]:
    return {"op": name, "path": path, **members}


# ── RFC 6902 ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("operation", "changed"),
    [
        (op("add", "/m/new", value={"x": [1]}), {"m": {**START["m"], "new": {"x": [1]}}}),
        (op("add", "/m/a", value=2), {"m": {**START["m"], "a": 2}}),
        (op("add", "/l/1", value="z"), {"l": ["x", "z", "y"]}),
        (op("add", "/l/2", value="z"), {"l": ["x", "y", "z"]}),
        (op("add", "/l/-", value="z"), {"l": ["x", "y", "z"]}),
        (op("add", "/n", value={}), {"n": {}}),
        (op("remove", "/m/b/0"), {"m": {**START["m"], "b": [2, {"c": "x"}]}}),
        (op("remove", "/m/d~1e"), {"m": {"a": 1, "b": [1, 2, {"c": "x"}]}}),
        (op("replace", "/m/b/2/c", value=[]), {"m": {**START["m"], "b": [1, 2, {"c": []}]}}),
        (op("replace", "/l", value=["y"]), {"l": ["y"]}),
        (op("replace", "/m", value={"a": 1}), {"m": {"a": 1}}),
        (op("replace", "/t", value="hé😁b!"), {"t": "hé😁b!"}),
        (op("move", "/l/0", **{"from": "/m/b/2"}), {"m": {**START["m"], "b": [1, 2]}, "l": [{"c": "x"}, "x", "y"]}),
        (op("move", "/m/a", **{"from": "/m/a"}), {}),
        (op("copy", "/l/-", **{"from": "/m/b"}), {"l": ["x", "y", [1, 2, {"c": "x"}]]}),
        (op("copy", "/u", **{"from": "/t"}), {"u": START["t"]}),
        (op("test", "/m/b", value=[1.0, 2, {"c": "x"}]), {}),
        (op("test", "", value=START), {}),
    ],
)
def test_an_operation_does_what_the_rfc_says(operation: dict[str, Any], changed: dict[str, Any]) -> None:
    assert after(operation) == {**START, **changed}


def test_removing_a_root_empties_it() -> None:
    assert after(op("remove", "/m"), op("remove", "/l"), op("remove", "/t")) == {"m": {}, "l": [], "t": ""}


def test_pointers_unescape_tilde_last() -> None:
    assert after(op("add", "/m/~01", value=1))["m"]["~1"] == 1


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (op("add", "/m/none/x", value=1), InvalidValue),
        (op("add", "/l/3", value=1), InvalidValue),
        (op("add", "/l/01", value=1), InvalidValue),
        (op("add", "/l/²", value=1), InvalidValue),
        (op("add", "/l/-1", value=1), InvalidValue),
        (op("add", "/t/0", value="x"), InvalidValue),
        (op("add", "/m/a/x", value=1), InvalidValue),
        (op("add", "", value={}), InvalidValue),
        (op("add", "/n", value=5), InvalidValue),
        (op("add", "/", value={}), InvalidName),
        (op("add", "/m", value=[]), RootConflict),
        (op("add", "m", value=1), InvalidValue),
        (op("add", "/m/~2", value=1), InvalidValue),
        (op("add", "/m/x", value=2**53), InvalidValue),
        (op("add", "/m/x", value="\ud800"), InvalidValue),
        (op("add", "/m/x", value={"\ud800": 1}), InvalidValue),
        (op("add", "/m/x", value={"$type": "tuple", "value": [1]}), InvalidValue),
        (op("remove", "/l/2"), InvalidValue),
        (op("remove", "/l/-"), InvalidValue),
        (op("remove", "/none"), InvalidValue),
        (op("remove", ""), InvalidValue),
        (op("replace", "/m/none", value=1), InvalidValue),
        (op("replace", "/none", value={}), InvalidValue),
        (op("move", "/m/b/x", **{"from": "/m/b"}), InvalidValue),
        (op("move", "/m/x", **{"from": "/none"}), InvalidValue),
        (op("test", "/m/a", value=2), Conflict),
        (op("test", "/m/a", value=True), Conflict),
        (op("test", "/m/none", value=1), InvalidValue),
    ],
)
def test_a_failing_operation_names_itself_and_nothing_is_applied(operation: Any, error: type[ShoalError]) -> None:
    document = live()
    before = document.canonical()
    with pytest.raises(error, match=r"operation 1 .*Nothing was written") as raised:
        run(document, [op("add", "/m/first", value=1), operation])
    assert raised.value.detail["index"] == 1
    assert raised.value.message.count("Nothing was written.") == 1
    assert document.canonical() == before


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"{}",
        b"[1]",
        b"[NaN]",
        b"[" * 100_000,
        b'[{"op":"add","path":"/m"}]',
        b'[{"op":"jump","path":"/m"}]',
        b'[{"op":[],"path":"/m"}]',
        b'[{"op":"move","path":"/m","from":1}]',
        b'[{"path":"/m"}]',
        b"\xff",
    ],
)
def test_malformed_patches_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidValue, match="Nothing was written"):
        patch(live(), packed, client_id=2)


def test_operations_and_values_are_bounded() -> None:
    with pytest.raises(TooLarge):
        after(*[op("test", "/m/a", value=1)] * (OPERATIONS_MAX + 1))
    with pytest.raises(TooLarge):
        after(op("add", "/m/x", value=[0] * VALUES_MAX))
    with pytest.raises(TooLarge):  # Each copy doubles the array.
        after(*[op("copy", "/l/-", **{"from": "/l"})] * 30)


@pytest.mark.parametrize("source", ["/m/s", "/m/plain/s", "/m"])
def test_copies_are_charged_by_their_bytes(source: str) -> None:
    document = live({"m": {"s": "x" * 3_000_000, "plain": {"s": "x" * 900_000}}})
    before = document.canonical()
    with pytest.raises(TooLarge, match=r"operation \d+ \(copy.*Nothing was written"):
        run(document, [op("copy", f"/k{nth}" if source == "/m" else f"/m/k{nth}", **{"from": source}) for nth in range(30)])
    assert document.canonical() == before


@pytest.mark.parametrize("path", ["/m/s", "", "/m/plain/a"])
def test_repeated_tests_are_charged(path: str) -> None:
    document = live({"m": {"s": "x" * 1_000_000, "plain": {"a": "x" * 1_000_000}}})
    with pytest.raises(TooLarge, match="copy or read more"):
        run(document, [op("test", path, value=document.to_json() if not path else "x" * 1_000_000)] * 30)


def test_the_length_of_a_path_is_charged() -> None:
    document, doc = live(), pycrdt.Doc[Any](client_id=9)
    doc.get("plain", type=pycrdt.Map)["a"] = {"long": "x" * 1_000_000, "short": 1}
    document.integrate(doc.get_update(), {"plain": "map"})
    with pytest.raises(TooLarge, match="copy or read more"):
        run(document, [op("test", "/plain/a/short", value=1)] * 30)


def test_a_patch_that_changes_nothing_is_the_empty_update() -> None:
    assert patch(live(), b'[{"op":"test","path":"/m/a","value":1}]', client_id=2) == (EMPTY, {})


def test_bytes_come_back_as_they_went_in() -> None:
    tagged = {"$type": "bytes", "value": "aGk="}
    assert after(op("add", "/m/x", value=tagged))["m"]["x"] == tagged


# ── the twin ──────────────────────────────────────────────────────────────────


def twin(content: Any, operation: dict[str, Any]) -> Any:
    """RFC 6902 over plain JSON, but that a root, once there, is emptied rather than removed."""
    content = copy.deepcopy(content)
    path = operation["path"].split("/")[1:]
    source = operation.get("from", "").split("/")[1:]
    match operation["op"]:
        case "add":
            put(content, path, operation["value"])
        case "remove":
            take(content, path)
        case "replace":
            if len(path) == 1 and type(look(content, path)) is not type(operation["value"]):
                raise LookupError
            take(content, path)
            put(content, path, operation["value"])
        case "move":
            if path[: len(source)] == source and path != source:
                raise LookupError
            value = look(content, source)
            if path != source:
                take(content, source)
                put(content, path, value)
        case "copy":
            put(content, path, copy.deepcopy(look(content, source)))
        case _:
            if json.dumps(look(content, path), sort_keys=True) != json.dumps(operation["value"], sort_keys=True):
                raise LookupError
    return content


def look(content: Any, path: list[str]) -> Any:
    for token in path:
        content = content[place(content, token, 0)]
    return content


def place(container: Any, token: str, beyond: int) -> Any:
    if isinstance(container, dict):
        return token
    if not isinstance(container, list):
        raise LookupError
    if token == "-" and beyond:
        return len(container)
    if int(token) >= len(container) + beyond:
        raise LookupError
    return int(token)


def put(content: Any, path: list[str], value: Any) -> None:
    parent = look(content, path[:-1])
    if len(path) == 1 and (
        not isinstance(value, dict | list | str) or (path[0] in content and type(value) is not type(content[path[0]]))
    ):
        raise LookupError
    where = place(parent, path[-1], 1)
    if isinstance(parent, list):
        parent.insert(where, value)
    else:
        parent[where] = value


def take(content: Any, path: list[str]) -> None:
    if len(path) == 1:
        content[path[0]] = type(content[path[0]])()
    else:
        parent = look(content, path[:-1])
        del parent[place(parent, path[-1], 0)]


VALUES = st.recursive(
    st.sampled_from([None, True, 0, 7, -1.5, "", "é😀", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)
PATHS = st.lists(st.sampled_from(["m", "l", "t", "b", "a", "0", "1", "2", "-"]), min_size=1, max_size=4).map(
    lambda tokens: "/" + "/".join(tokens)
)
OPERATIONS = st.one_of(
    st.builds(
        lambda name, path, value: op(name, path, value=value), st.sampled_from(["add", "replace", "test"]), PATHS, VALUES
    ),
    st.builds(lambda path: op("remove", path), PATHS),
    st.builds(lambda name, path, source: op(name, path, **{"from": source}), st.sampled_from(["move", "copy"]), PATHS, PATHS),
)


@examples(150)
@given(st.lists(st.lists(OPERATIONS, min_size=1, max_size=2), max_size=6))
def test_patches_agree_with_the_plain_twin(patches: list[list[dict[str, Any]]]) -> None:
    document, expected = live(), copy.deepcopy(START)
    for client_id, operations in enumerate(patches, 10):
        try:
            wanted = expected
            for operation in operations:
                wanted = twin(wanted, operation)
        except (LookupError, ValueError, TypeError):
            with pytest.raises(ShoalError):
                run(document, operations, client_id=client_id)
        else:
            expected = wanted
            run(document, operations, client_id=client_id)
        assert document.to_json() == expected


# ── merging ───────────────────────────────────────────────────────────────────


def merged(one: dict[str, Any], other: dict[str, Any]) -> Any:
    """Two patches made without knowledge of each other, in both orders."""
    results = []
    for first, second in ((one, other), (other, one)):
        document = live()
        patches = [patch(document, json.dumps([each]).encode(), client_id=20 + (each is one)) for each in (first, second)]
        for patched in patches:
            document.integrate(patched.update, patched.roots)
        results.append(document)
    assert results[0].canonical() == results[1].canonical()
    return results[0].to_json()


def test_concurrent_edits_within_one_nested_object_merge() -> None:
    both = merged(op("add", "/m/b/2/p", value=1), op("add", "/m/b/2/q", value=2))
    assert both["m"]["b"][2] == {"c": "x", "p": 1, "q": 2}


def test_concurrent_replacements_of_a_text_keep_both_changes() -> None:
    both = merged(op("replace", "/t", value="HEé😀b"), op("replace", "/t", value="hé😀b end"))
    assert both["t"] == "HEé😀b end"


@pytest.mark.answers("both-sides-initialise-one-document")
def test_declaring_one_root_twice_does_not_double_it() -> None:
    assert merged(op("add", "/n", value={"a": 1}), op("add", "/n", value={"a": 1}))["n"] == {"a": 1}


@pytest.mark.answers("both-sides-initialise-one-document")
def test_replacing_a_root_edits_it_in_place() -> None:
    both = merged(op("replace", "/m", value={**START["m"], "a": 2}), op("add", "/m/b/2/p", value=1))
    assert (both["m"]["a"], both["m"]["b"][2]["p"]) == (2, 1)


def test_writing_into_a_plain_value_makes_it_shared() -> None:
    document = live()
    fork = document.fork(client_id=30)
    fork.get("m", type=pycrdt.Map)["plain"] = {"x": [{"y": 1}]}
    document.integrate(fork.get_update(document.state()), {})
    assert run(document, [op("replace", "/m/plain/x/0/y", value=2)])["m"]["plain"] == {"x": [{"y": 2}]}
    shared = document.fork(client_id=31).get("m", type=pycrdt.Map)["plain"]
    assert isinstance(shared["x"][0], pycrdt.Map)


def test_a_nested_text_is_spliced() -> None:
    document = live()
    fork = document.fork(client_id=30)
    fork.get("m", type=pycrdt.Map)["note"] = pycrdt.Text("one two")
    document.integrate(fork.get_update(document.state()), {})
    assert run(document, [op("replace", "/m/note", value="one 2")])["m"]["note"] == "one 2"
    assert isinstance(document.fork(client_id=31).get("m", type=pycrdt.Map)["note"], pycrdt.Text)


# ── XML ───────────────────────────────────────────────────────────────────────


def paragraph(*children: Any, **attributes: Any) -> dict[str, Any]:
    return {"tag": "p", "attributes": attributes, "children": list(children)}


def page() -> LiveDocument:
    document = LiveDocument(bytes_max=1 << 22, roots_max=16, roots={"x": "xml"})
    run(document, [op("replace", "/x", value=[paragraph("one"), paragraph("two", level=1)])], client_id=1)
    return document


@pytest.mark.parametrize(
    ("operations", "after"),
    [
        ([op("add", "/x/1", value={"tag": "p"})], [paragraph("one"), paragraph(), paragraph("two", level=1)]),
        ([op("add", "/x/-", value="text")], [paragraph("one"), paragraph("two", level=1), "text"]),
        ([op("replace", "/x/0/children/0", value="ONE")], [paragraph("ONE"), paragraph("two", level=1)]),
        ([op("replace", "/x/1/attributes/level", value=2)], [paragraph("one"), paragraph("two", level=2)]),
        ([op("remove", "/x/1/attributes/level"), op("remove", "/x/0")], [paragraph("two")]),
        ([op("move", "/x/0", **{"from": "/x/1"})], [paragraph("two", level=1), paragraph("one")]),
        (
            [op("copy", "/x/0/children/-", **{"from": "/x/1"})],
            [paragraph("one", paragraph("two", level=1)), paragraph("two", level=1)],
        ),
        ([op("test", "/x/1/children", value=["two"]), op("remove", "/x")], []),
        # What is between two operations need not be XML.
        ([op("add", "/x/0/tag", value=1), op("add", "/x/0/tag", value="p")], [paragraph("one"), paragraph("two", level=1)]),
    ],
)
def test_xml_is_patched_as_it_is_shown(operations: Any, after: Any) -> None:
    assert run(page(), operations)["x"] == after


@pytest.mark.parametrize(
    ("operation", "error", "why"),
    [
        (op("add", "/x/0/tag", value=1), InvalidValue, "root 'x'"),
        (op("replace", "/x/0", value={"insert": "a"}), InvalidValue, "root 'x'"),
        (op("add", "/x/0/children/0/0", value="a"), InvalidValue, "neither an object nor an array"),
        (op("add", "/x/7", value="a"), InvalidValue, "out of range"),
        (op("replace", "/x", value={"a": 1}), RootConflict, "kind xml"),
        (op("test", "/x/0/tag", value="h"), Conflict, "differs"),
    ],
)
def test_a_patch_that_makes_no_xml_is_refused(operation: Any, error: type[ShoalError], why: str) -> None:
    document = page()
    before = document.canonical()
    with pytest.raises(error, match=why):
        run(document, [op("replace", "/x/1/attributes/level", value=2), operation])
    assert document.canonical() == before


def test_two_patches_of_one_paragraph_merge() -> None:
    document = page()
    text = patch(document, json.dumps([op("replace", "/x/1/children/0", value="two!")]).encode(), client_id=8)
    level = patch(document, json.dumps([op("replace", "/x/1/attributes/level", value=2)]).encode(), client_id=9)
    for update, roots in (text, level):
        document.integrate(update, roots)
    assert document.to_py()["x"] == [paragraph("one"), paragraph("two!", level=2)]
