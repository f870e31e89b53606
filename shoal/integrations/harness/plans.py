"""`ShoalPlanStore` and `ShoalSpendStore`: the harness's plans and spend on Shoal, and its own types as values.

The harness's own types as values, and back.

Law: what is read equals what was written, as far as pydantic serialises it; what a newer version wrote is refused.

`ShoalPlanStore`: the harness's `PlanStore` on Shoal.

Laws:
- A plan is a thread, its steps the channel `items`; each change is a checkpoint, on exactly the plan that it was decided on.
- A change that meets another one is decided anew, so that two writers lose nothing.

`ShoalSpendStore`: the harness's `BatchSpendStore` on Shoal.

Laws:
- The total of a window is the sum of its shares, one for each store object that has added to it. A share is changed
  by that object alone, so that adding at several nodes at once loses nothing, and amounts stay exact decimals.
- All entries of a call are one write, all or none, with the tokens that they carry. An entry whose token is known for its
  key is not added again. A token is known as long as its window, but not longer than `TOKEN_TTL`.
- A share ends when its time to live is over, from the last addition to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal, localcontext
from hashlib import sha256
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai_harness.planning import PlanItem, TaskStatus
from pydantic_ai_harness.spend import SpendEntry, Spent
from pydantic_core import PydanticSerializationError

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import InvalidInput, InvalidValue, ItemChanged, NotFound, SchemaTooNew
from shoal.integrations import contents
from shoal.integrations.base import InSpace
from shoal.integrations.contents import escaped, name_of, unsafe
from shoal.kinds.items.handle.item import Item, put_request
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM

T = TypeVar("T")
FORM = 1
"""The version of the form in which the harness's values are stored."""
NAME = "harness"


class Form(Generic[T]):
    """How values of one type are stored. `what` names them in errors."""

    def __init__(self, kind: type[T], what: str) -> None:
        self._adapter = TypeAdapter(kind)
        self._what = what

    def stored(self, value: T, **beside: Any) -> dict[str, Any]:
        """The value to store; the fields `beside` it can be found by.

        Raises:
            InvalidValue: a part of it is no JSON.
        """
        try:
            plain = self._adapter.dump_python(value, mode="json")
        except PydanticSerializationError as error:
            raise InvalidValue(
                f"{self._what} is no JSON: {error}. Nothing was written. Give values that pydantic can serialise."
            ) from None
        return {NAME: FORM, "value": contents.stored(plain, self._what), **beside}

    def shown(self, record: Any) -> T:
        """The value of `stored`.

        Raises:
            SchemaTooNew: a newer version of Shoal or of the harness wrote it.
            InvalidValue: something else did.
        """
        known = contents.of_form(record, NAME, FORM)
        if known is None:
            raise InvalidValue(
                f"{self._what} was not written by this integration: {record!r:.100}. Nothing was written. Use another space."
            )
        try:
            return self._adapter.validate_python(contents.shown(known["value"]))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise SchemaTooNew(
                f"{self._what} is not of a form that the pydantic-ai-harness that is installed here knows "
                f"({'.'.join(map(str, first['loc']))}: {first['msg']}). Nothing was written. Update it here.",
                readable_from="",
            ) from None


_PLAIN = unsafe()
_ITEM = Form(PlanItem, "a step of a plan")
_Change = Callable[[list[PlanItem]], list[PlanItem]]


class ShoalPlanStore(InSpace):
    """One plan, which several agents may work on. Failures raise `ShoalError`s."""

    SPACE = "harness"

    def __init__(self, store: Store, *, space: str | None = None, session: str = "default") -> None:
        """The plan of a session, on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `shoal.open`.
            InvalidName: `session` is longer than a name.
        """
        super().__init__(store, space=space)
        self._name = self._space.thread(f"plan/{name_of(session, _PLAIN)}").name

    async def get_items(self) -> list[PlanItem]:
        """The steps, in order."""
        return await self._bridge.awaited(self._read)

    async def set_items(self, items: list[PlanItem]) -> None:
        """Replace all steps."""
        wanted = [item.model_copy(deep=True) for item in items]
        await self._bridge.awaited(lambda: self._change(lambda _: wanted))

    async def get_item(self, item_id: str) -> PlanItem | None:
        """The step of an id; None if there is none."""
        return next((item for item in await self.get_items() if item.id == item_id), None)

    async def add_item(self, item: PlanItem) -> PlanItem:
        """Append a step.

        Raises:
            ValueError: a step has its id; nothing was written.
        """

        def added(items: list[PlanItem]) -> list[PlanItem]:
            if any(each.id == item.id for each in items):
                raise ValueError(f"A step with id {item.id!r:.100} is already in this plan. Nothing was written.")
            return [*items, item]

        await self._bridge.awaited(lambda: self._change(added))
        return item.model_copy(deep=True)

    async def update_item(
        self,
        item_id: str,
        *,
        content: str | None = None,
        status: TaskStatus | None = None,
        active_form: str | None = None,
        parent_id: str | None = None,
        depends_on: list[str] | None = None,
    ) -> PlanItem | None:
        """Change the fields of a step that are given, and return it; None if there is none."""
        fields = {
            "content": content,
            "status": status,
            "active_form": active_form,
            "parent_id": parent_id,
            "depends_on": None if depends_on is None else list(depends_on),
        }
        given = {name: value for name, value in fields.items() if value is not None}

        def updated(items: list[PlanItem]) -> list[PlanItem]:
            return [item.model_copy(update=given, deep=True) if item.id == item_id else item for item in items]

        items = await self._bridge.awaited(lambda: self._change(updated))
        return next((item for item in items if item.id == item_id), None)

    async def remove_item(self, item_id: str) -> bool:
        """Remove a step; False if there is none."""
        found = False

        def removed(items: list[PlanItem]) -> list[PlanItem]:
            nonlocal found
            left = [item for item in items if item.id != item_id]
            found = len(left) < len(items)
            return left

        await self._bridge.awaited(lambda: self._change(removed))
        return found

    # ── on the store's loop ───────────────────────────────────────────────────

    def _thread(self) -> Thread:
        return self._space.thread(self._name)

    async def _read(self) -> list[PlanItem]:
        await self._caught_up(self._name)
        try:
            found = await self._thread().load()
        except NotFound:
            return []
        return _items(found.state)

    async def _change(self, change: _Change) -> list[PlanItem]:
        def changed(state: dict[str, Any]) -> dict[str, Any]:
            return {"items": [_ITEM.stored(item) for item in change(_items(state))]}

        await self._caught_up(self._name)
        saved = await self._thread().modify(changed, metadata={NAME: FORM})
        return _items(saved.state)


def _items(state: Any) -> list[PlanItem]:
    stored: Sequence[Any] = state.get("items", ())
    return [_ITEM.shown(each) for each in stored]


TOKEN_TTL = timedelta(hours=1)
"""As in the harness's own stores."""
_LABEL = "{spend}"
_DIGITS = 40  # As many as the harness computes with.
_IN_LABEL = unsafe(".")
_SPENT = Form(Spent, "what a window has accumulated")


class ShoalSpendStore(InSpace):
    """Keeps what windows of budgets have accumulated in one space. Failures raise `ShoalError`s."""

    SPACE = "harness"

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalSpendStore.open`.
        """
        super().__init__(store, space=space)
        self._share = self._connection.entropy(8).hex()

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Spent]:
        """The total of each key; zero for a key that was never added to. With durability `quorum`, what any node has
        acknowledged counts.
        """
        return await self._bridge.awaited(lambda: self._totals(keys))

    async def add_many(self, entries: Sequence[SpendEntry]) -> Mapping[str, Spent]:
        """Add all entries, or none, and return what their keys have accumulated then.

        Raises:
            InvalidInput: an amount is not finite, or there are more entries than a batch can hold; nothing was added.
            InvalidName: a key is longer than a name; nothing was added.
            OutcomeUnknown: they may be added. Repeat entries that have a token.
        """
        return await self._bridge.awaited(lambda: self._retried(list(entries)))

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _totals(self, keys: Sequence[str]) -> dict[str, Spent]:
        await self._caught_up(_LABEL)
        return {key: await self._total(key) for key in keys}

    async def _total(self, key: str) -> Spent:
        total = Spent()
        async for item in self._space.items.scan(_shares(key)):
            total = _sum(total, _shown(item))
        return total

    async def _retried(self, entries: list[SpendEntry]) -> dict[str, Spent]:
        pauses = contended(self._connection)
        while True:
            try:
                await self._add(entries)
            except ItemChanged:  # A token arrived meanwhile, or another call of this object added.
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
            else:
                return await self._totals(list(dict.fromkeys(entry.key for entry in entries)))

    async def _add(self, entries: Sequence[SpendEntry]) -> None:
        await self._caught_up(_LABEL)
        marks = [_mark(entry) for entry in entries]
        keys = list(dict.fromkeys(entry.key for entry in entries))
        asked = [(_shares(key), self._share) for key in keys]
        found = await self._space.items.get_many([*asked, *((place, mark) for place, mark in marks if mark)])
        shares = dict(zip(keys, found, strict=False))
        known = {(item.namespace, item.key) for item in found[len(keys) :] if item is not None}
        added: dict[str, tuple[Spent, timedelta | None]] = {}
        tokens: dict[tuple[tuple[str, ...], str], timedelta] = {}
        for entry, (place, mark) in zip(entries, marks, strict=True):
            if (place, mark) in known or (place, mark) in tokens:
                continue
            share = shares[entry.key]
            before = added[entry.key][0] if entry.key in added else Spent() if share is None else _shown(share)
            added[entry.key] = _sum(before, _of(entry)), entry.ttl
            if mark:
                tokens[place, mark] = TOKEN_TTL if entry.ttl is None else min(TOKEN_TTL, entry.ttl)
        await self._write(shares, added, tokens)

    async def _write(
        self,
        shares: Mapping[str, Item | None],
        added: Mapping[str, tuple[Spent, timedelta | None]],
        tokens: Mapping[tuple[tuple[str, ...], str], timedelta],
    ) -> None:
        space = self._space.name
        writes: list[requests.BatchWrite] = []
        for key, (spent, ttl) in added.items():
            share = shares[key]
            at = NO_ITEM if share is None else share.version
            writes.append(put_request(space, _shares(key), self._share, _SPENT.stored(spent), ttl=ttl, expect=at))
        for (place, mark), ttl in tokens.items():
            writes.append(put_request(space, place, mark, None, ttl=ttl, expect=NO_ITEM))
        if len(writes) > (most := self._connection.config.batch_writes_max):
            raise InvalidInput(
                f"{len(writes)} writes are more than the {most} of a batch. Nothing was added. Add fewer at once."
            )
        if writes:
            await self._connection.write(requests.Batch(writes), key=None, durability=None)


def _shares(key: str) -> tuple[str, ...]:
    return _LABEL, "shares", escaped(key, _IN_LABEL)


def _mark(entry: SpendEntry) -> tuple[tuple[str, ...], str]:
    """Where an entry's token is remembered; the name is empty if it has none."""
    place = (_LABEL, "tokens", escaped(entry.key, _IN_LABEL))
    return place, "" if entry.token is None else sha256(entry.token.encode("utf-8", "surrogatepass")).hexdigest()


def _of(entry: SpendEntry) -> Spent:
    if not Decimal(entry.usd).is_finite():
        raise InvalidInput(f"the amount of {entry.key!r:.100} is {entry.usd}. Nothing was added. Give a finite one.")
    return Spent(usd=entry.usd, tokens=entry.tokens, requests=entry.requests, unpriced_requests=entry.unpriced)


def _sum(one: Spent, other: Spent) -> Spent:
    with localcontext() as context:
        context.prec = _DIGITS
        return Spent(
            usd=one.usd + other.usd,
            tokens=one.tokens + other.tokens,
            requests=one.requests + other.requests,
            unpriced_requests=one.unpriced_requests + other.unpriced_requests,
        )


def _shown(item: Item) -> Spent:
    value: Any = item.value
    return _SPENT.shown(value)
