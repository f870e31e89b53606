"""Restoring the beginning of a document, which a client has seen on a node that is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pycrdt
import pytest

from shoal.errors import (
    GenerationEnded,
    InvalidInput,
    InvalidValue,
    NotFound,
    NotReady,
    RootConflict,
    SessionBehind,
    TooLarge,
)
from shoal.kinds.document.state import genesis, yjs
from shoal.kinds.document.state.genesis import Genesis
from shoal.kinds.document.state.live import EMPTY
from shoal.protocol import requests
from shoal.protocol.requests import Begin, Begun, RestoreBeginning, Update
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.writes.test_erasing import check_sound

LESSER, GREATER = sorted(({"r": "x", "m": {"k": 1}}, {"r": [1]}), key=lambda content: genesis.begin(content, 0).digest)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


def request(made: Genesis, **changed: Any) -> RestoreBeginning:
    fields: dict[str, Any] = {
        "digest": made.digest,
        "update": made.update,
        "deletions": EMPTY,
        "roots": made.roots,
        "author": "ana",
        "generation": 0,
    }
    return RestoreBeginning("crew", "d", **(fields | changed))


def begin(content: Any) -> Begin:
    return Begin("crew", "d", json.dumps(content).encode())


async def shown(node: Any) -> Any:
    reply = await node.session().call(requests.ReadDocumentJson("crew", "d"))
    return {name: value for name, value in json.loads(reply.json).items() if value}


def restored_without(content: Any, root: str) -> RestoreBeginning:
    """As by a client that has deleted the text `root` in the meantime."""
    made = genesis.begin(content, 0)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    doc.apply_update(made.update)
    doc.get(root, type=pycrdt.Text).clear()
    update, deletions = genesis.cut_out(doc, made.digest)
    return request(made, update=update, deletions=deletions)


@pytest.mark.answers("only-copy-of-a-beginning-is-lost")
@pytest.mark.parametrize(("first", "second"), [(LESSER, GREATER), (GREATER, LESSER)])
async def test_of_what_was_restored_and_what_is_there_one_counts(bench: Bench, first: Any, second: Any) -> None:
    session = bench.node.session()
    await session.call(begin(first))
    assert await session.call(request(genesis.begin(second, 0))) == Begun(created=True)
    assert await shown(bench.node) == LESSER
    assert await session.call(request(genesis.begin(second, 0))) == Begun(created=False)
    async with await bench.space.document("d") as mirror:
        assert {name: value for name, value in mirror.to_py().items() if value} == LESSER
    check_sound(bench.storage)


async def test_a_mirror_that_is_open_is_told_what_counts_now(bench: Bench) -> None:
    await bench.node.session().call(begin(GREATER))
    follow = requests.Follow("crew", "d")
    async with bench.node.session().subscribe(follow) as pushes:
        state = await anext(pushes)
        assert isinstance(state, requests.DocumentState)
        await bench.node.session().call(request(genesis.begin(LESSER, 0)))
        edit = await anext(pushes)
        assert isinstance(edit, requests.Edit)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    for update in (state.update, edit.update):
        doc.apply_update(update)
    assert [each.digest for each in state.beginnings or []] == [genesis.begin(GREATER, 0).digest]
    assert [each.digest for each in edit.beginnings] == [genesis.begin(each, 0).digest for each in (LESSER, GREATER)]
    assert edit.roots == genesis.begin(LESSER, 0).roots
    roots = {name: doc.get(name, type=pycrdt.Text if kind == "text" else pycrdt.Map) for name, kind in edit.roots.items()}
    assert {name: str(root) if name == "r" else root.to_py() for name, root in roots.items()} == LESSER


@pytest.mark.answers("restored-beginning-shows-deleted-parts")
async def test_restored_on_one_node_and_still_there_on_another_it_is_one_and_the_deletions_hold(fleet: Fleet) -> None:
    content = {"r": "x", "m": {"k": 1}}
    await fleet.isolate("c")
    await fleet["c"].node.session().call(begin(content))
    await fleet["a"].node.session().call(restored_without(content, "r"))
    fleet.link_all("c")
    await fleet.converged()
    assert [await shown(fleet[name].node) for name in "abc"] == [{"m": {"k": 1}}] * 3
    assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
    for name in "abc":
        check_sound(fleet[name].storage)


@pytest.mark.answers("mirror-deletes-a-lost-beginning")
async def test_an_edit_is_refused_if_the_node_lacks_the_beginning_that_its_editor_shows(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(begin(GREATER))
    unknown = genesis.begin(LESSER, 0)
    everything = b"\x00" + yjs.pack_delete_set([(genesis.begin(GREATER, 0).client_id, 0, 1)])
    with pytest.raises(NotReady):
        await session.call(Update("crew", "d", everything, beginning=unknown.digest))
    assert await shown(bench.node) == GREATER
    await session.call(request(unknown))
    await session.call(Update("crew", "d", EMPTY, beginning=unknown.digest))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"digest": b"short"}, InvalidInput),
        ({"digest": bytes(32)}, InvalidInput),
        ({"update": b"\x01"}, InvalidValue),
        ({"update": genesis.begin({"other": "x"}, 0).update}, InvalidInput),
        ({"deletions": genesis.begin(LESSER, 0).update}, InvalidInput),
        ({"deletions": b"\x00\x01\x05\x01\x00\x01"}, InvalidInput),
        ({"roots": {}}, InvalidValue),
        ({"roots": {"r": "map", "m": "map"}}, RootConflict),
        ({"generation": 1}, SessionBehind),
    ],
)
async def test_only_beginnings_are_restored(bench: Bench, changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await bench.node.session().call(request(genesis.begin({"r": "x", "m": {"k": 1}}, 0), **changed))
    with pytest.raises(NotFound):
        await shown(bench.node)


async def test_of_one_document_a_bounded_number_is_restored(open_bench: Opener) -> None:
    bench = open_bench(document_beginnings_max=2)
    for n in range(2):
        await bench.node.session().call(request(genesis.begin({"r": f"x{n}"}, 0)))
    with pytest.raises(TooLarge, match="at most 2 initial contents"):
        await bench.node.session().call(request(genesis.begin({"r": "y"}, 0)))
    assert await bench.node.session().call(request(genesis.begin({"r": "x1"}, 0))) == Begun(created=False)


async def test_the_beginning_of_a_deleted_document_is_not_restored(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(begin(LESSER))
    await session.call(requests.DeleteDocument("crew", "d"))
    with pytest.raises(GenerationEnded):
        await session.call(request(genesis.begin(LESSER, 0)))


def test_a_beginning_is_cut_out_of_what_others_edited() -> None:
    made, other = genesis.begin({"r": "xyz"}, 0), genesis.begin({"r": "abc"}, 0)
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=1)
    doc.apply_update(made.update)
    assert genesis.cut_out(doc, made.digest) == (made.update, EMPTY)
    doc.apply_update(other.update)
    text = doc.get("r", type=pycrdt.Text)
    text += "more"
    text.clear()
    update, deletions = genesis.cut_out(doc, made.digest)
    genesis.check(made.digest, yjs.parse(update))
    again: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2)
    again.apply_update(update)
    again.apply_update(deletions)
    assert yjs.parse_state(again.get_state()) == {made.client_id: 3}
    assert str(again.get("r", type=pycrdt.Text)) == ""
