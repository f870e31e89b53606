"""Every public method of every handle, given wrong values of every kind: typed errors, and a store that stays sound."""

from __future__ import annotations

import inspect
import itertools
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shoal
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, ShoalError, StorageError
from shoal.node.environment import system_environment
from shoal.node.node import Node
from shoal.node.verification.verify import verify
from shoal.storage.interface import MemoryStorage
from tests.client.surface import HANDLES, WRONG, Bench, handle_classes, methods_of, read_all, static

CONFIG = Config(listen_port=0, request_timeout_s=30.0, stop_timeout_s=5.0)
FAMILIES = {
    "store": (
        "Store",
        "Backup",
        "Space",
        "SpaceRetention",
        "SpaceRedaction",
        "SpaceTiering",
        "Schemas",
        "Subjects",
        "Presence",
    ),
    "values": ("Counter", "Register", "Budget", "SharedSet", "SharedList", "SharedMap"),
    "items and documents": ("Items", "Document", "FileStream"),
    "batches": tuple(name for name in HANDLES if name.startswith("Batch")),
    "readings": tuple(name for name in HANDLES if name.endswith("Reading")),
    "threads": ("Thread", "Autosave", "Step", "Leasing", "Lease", "Job"),
    "journals and queues": ("Journal", "Consumer", "Inbox", "Worklist"),
}

LONG_IF_SERVED = ("items and documents", "threads", "journals and queues")
"""A node checks the same of these however it is asked, but they take ten times as long over a connection."""


def cases() -> Iterator[Any]:
    for kind, family in itertools.product(("embedded", "served"), FAMILIES):
        is_long = kind == "served" and family in LONG_IF_SERVED
        yield pytest.param(kind, family, id=f"{kind}-{family}", marks=[pytest.mark.thorough] * is_long)


class Running(NamedTuple):
    store: Store
    node: Node
    storage: MemoryStorage


@pytest.fixture(params=["embedded", "served"])
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        storage, environment = MemoryStorage(), system_environment()
        node = Node(storage, config=CONFIG, environment=environment)
        if request.param == "embedded":
            connection = StoreConnection(node.session(), CONFIG, "memory", environment.entropy)
            store = await stack.enter_async_context(Store(connection, close=connection.session.close))
        else:
            listener = Listener(
                create_app(node.session, config=CONFIG, node="ab12", version="0", now_s=time.time), config=CONFIG
            )
            await listener.start()
            stack.push_async_callback(listener.stop)
            store = await stack.enter_async_context(shoal.connect(listener.url, config=CONFIG, durability="memory"))
        yield Running(store, node, storage)
    await node.stop()


def reachable(cls: type, there: dict[str, type]) -> set[str]:
    """The handles that the public methods and properties of one return."""
    found: set[str] = set()
    for name in dir(cls):
        member = static(cls, name)
        member = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(member):
            found |= there.keys() & set(re.findall(r"\w+", str(inspect.unwrap(member).__annotations__.get("return"))))
    return found


def test_every_handle_that_a_store_leads_to_is_tried() -> None:
    there = handle_classes()
    seen, left = set(), {"Store"}
    while left:
        name = left.pop()
        seen.add(name)
        left |= {found for found in reachable(there[name], there) if is_handle(there[found])} - seen
    takers = {name for name in seen if any(method.parameters for method in methods_of(there[name]))}
    assert takers <= {*HANDLES, "Pending", "Found"}  # Of those the batch, and the reading, call `settle`.
    assert set(HANDLES) == {name for family in FAMILIES.values() for name in family}


def is_handle(cls: type) -> bool:
    parameters: Any = getattr(cls, "__dataclass_params__", None) or getattr(cls, "__struct_config__", None)
    return parameters is None or not parameters.frozen


@pytest.mark.answers("value-of-a-wrong-type-is-stored")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(("running", "family"), list(cases()), indirect=["running"])
async def test_wrong_values_are_refused_by_typed_errors_and_damage_nothing(
    family: str, running: Running, record_property: Callable[[str, object], None]
) -> None:
    issuer = running.node.service._database.issuer
    bench = Bench(running.store, lambda: issuer.operations)
    there = handle_classes()
    for name in FAMILIES[family]:
        for method in methods_of(there[name]):
            await bench.misuse(method)
    assert not bench.wrong, f"{len(bench.wrong)} of {bench.calls} calls:\n" + "\n".join(bench.wrong[:50])
    objects = await read_all(running.store)
    report = verify(running.storage, config=CONFIG)
    assert report.problems == []
    record_property("calls", bench.calls)
    record_property("verified", report.objects)
    record_property("read", objects)


CORRUPTING: dict[str, tuple[Callable[[Store], Any], str]] = {
    "save": (lambda store: store.space("s").thread("t").save({"a": 1}, label=None), "label"),  # type: ignore[arg-type]
    "add": (lambda store: store.space("s").counter("c").add(True), "amount"),
    "map.add": (lambda store: store.space("s").map("m").add("k", 1.5), "amount"),  # type: ignore[arg-type]
    "grant": (lambda store: store.space("s").budget("b").grant(True), "amount"),
    "send": (lambda store: store.space("s").thread("t").inbox.send({}, by=None), "by"),  # type: ignore[arg-type]
    "resolve": (lambda store: store.space("s").thread("t").resolve("k", "retry", by=None), "by"),  # type: ignore[arg-type]
    "schemas.put": (lambda store: store.space("s").schemas.put("b", True, {}), "version"),
}


@pytest.mark.answers("value-of-a-wrong-type-is-stored")
@pytest.mark.parametrize("call", CORRUPTING)
async def test_a_wrong_type_is_refused_by_the_argument_s_name(running: Running, call: str) -> None:
    make, argument = CORRUPTING[call]
    thread = running.store.space("s").thread("t")
    await thread.save({"a": 0})
    with pytest.raises(InvalidInput, match=f"^{argument} must be .* Nothing was written") as refused:
        await make(running.store)
    assert refused.value.detail["field"] == argument
    assert (await thread.load()).state == {"a": 0}


async def test_a_text_with_a_lone_surrogate_is_told_as_that(running: Running) -> None:
    thread = running.store.space("s").thread("t")
    for refused in (
        thread.save({"a": 1}, label="a\ud800"),
        thread.inbox.send(1, by="\ud800"),
        thread.pause("\udfff"),
        running.store.space("s").document("d", initial={"m": {"a": "\ud800"}}),
    ):
        with pytest.raises(InvalidInput, match="lone surrogate"):
            await refused


async def test_an_argument_that_makes_no_request_is_named(running: Running) -> None:
    space = running.store.space("s")
    wrong: Any = 5
    for call, said in (
        (
            lambda: space.thread("t").update(append=wrong),
            r"append must be a mapping of text and an iterable or None; got 5 \(int\)",
        ),
        (lambda: space.thread("t").inbox.take(wrong), "take needs a message"),
        (lambda: space.items.put(wrong, "k", 1), "namespace must be a list of text; got 5"),
        (lambda: space.thread("t").prune(older_than=wrong * 1e300 * 1e300), "older_than"),
    ):
        with pytest.raises(InvalidInput, match=said):
            await call()
    with pytest.raises(TypeError, match="unexpected keyword"):
        await space.counter("c").add(ammount=3)  # type: ignore[call-arg]


async def test_a_root_that_can_be_none_is_named(running: Running) -> None:
    with pytest.raises(InvalidValue, match="the root 'flag' is True; a root is an object"):
        await running.store.space("s").document("d", initial={"body": "text", "flag": True})


def test_the_blocking_face_refuses_the_same(tmp_path: Path) -> None:
    calls, damaged = 0, False
    with shoal.sync.open(tmp_path / "state", durability="memory") as store:
        space = store.space("s")
        targets: tuple[Callable[..., object], ...] = (
            space.counter("c").add,
            space.budget("b").grant,
            space.thread("t").save,
            space.thread("t").journal.append,
        )
        for call in targets:
            for make in WRONG.values():
                value = make()
                for given in ({"durability": value}, {"key": value}):
                    calls += 1
                    try:
                        call("k", **given)
                    except ShoalError as error:
                        damaged = damaged or isinstance(error, StorageError)
                if inspect.iscoroutine(value):
                    value.close()
        assert space.counter("c").value() == 0
    assert not damaged
    assert calls == len(targets) * len(WRONG) * 2
    shutil.rmtree(tmp_path / "state")
