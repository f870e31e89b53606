"""`ShoalPlanStore`: the harness's `PlanStore` on Shoal.

Laws:
- A plan is a thread, its steps the channel `items`; each change is a checkpoint, on exactly the plan that it was decided on.
- A change that meets another one is decided anew, so that two writers lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai_harness.planning import PlanItem, TaskStatus

from shoal.client.store import Store
from shoal.errors import NotFound
from shoal.integrations.base import InSpace
from shoal.integrations.escaping import name_of, unsafe
from shoal.integrations.harness.forms import FORM, NAME, Form
from shoal.kinds.thread.handle.thread import Thread

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
