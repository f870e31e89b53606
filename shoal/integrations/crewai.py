"""CrewAI on Shoal: the states of flows in a durable, replicated store.

with ShoalFlowPersistence.open("./state") as persistence:
    set_flow_persistence_factory(lambda: persistence)  # for every @persist, or RefundFlow(persistence=persistence)
    RefundFlow().kickoff()

`ShoalFlowPersistence`: the states of CrewAI's flows on Shoal.

Laws:
- A flow is a thread, and each saved state a checkpoint of it, with the method that ended. So a flow has a history, and
  what does not change from one state to the next is stored once.
- A flow that waits for a person is one write: its state, and what is needed to resume it.
- The newest state is the one that was saved last, whoever saved it.
- CrewAI calls from any thread and blocks until the answer is there. So the store must be on a loop of another thread.
"""

from __future__ import annotations

try:
    import crewai.flow.persistence as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.crewai needs the package crewai, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[crewai]'",
        name=missing.name,
    ) from None

import json
from datetime import date
from typing import Any, ClassVar

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import BaseModel, Field, PrivateAttr

from shoal.client.store import Space, Store
from shoal.errors import InvalidValue, NotFound
from shoal.integrations import contents
from shoal.integrations.base import Bridge, OnStore, checked_store
from shoal.kinds.thread.handle.thread import Thread

__all__ = [
    "ShoalFlowPersistence",
]


NAME = "crewai"
FORM = 1
"""The version of the form in which states are stored."""
_STATE, _PENDING = "state", "pending"
_UNSAFE = contents.unsafe()


class ShoalFlowPersistence(FlowPersistence, OnStore):
    """Keeps the states of flows in one space. Open it with `with`, in asynchronous programs too."""

    SPACE: ClassVar[str] = NAME
    persistence_type: str = Field(default="ShoalFlowPersistence")
    _space: Space = PrivateAttr()
    _bridge: Bridge = PrivateAttr()

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """A persistence on a store that is open on the running loop, and that the caller closes.

        Its methods block, so they are called from other threads than that loop's.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalFlowPersistence.open`.
        """
        BaseModel.__init__(self)  # Not the next in line, which is ours.
        self._space = checked_store(store, "ShoalFlowPersistence").space(space or self.SPACE)
        self._bridge = Bridge()

    def init_db(self) -> None:
        """Nothing: a store needs no tables."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Store the state of a flow after a method. Values that are no JSON become text, as in CrewAI's own persistence.

        Raises:
            InvalidValue: a key is no text, or the state contains itself; nothing was written.
            InvalidName: the id is longer than a name; nothing was written.
            TooLarge: it is larger than a request may be; nothing was written.
            InvalidInput: this is the thread of the store's own loop; nothing was written.
        """
        self._save(flow_uuid, method_name, {_STATE: _plain(state_data)})

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The newest state of a flow; None if it has none.

        Raises:
            SchemaTooNew: a newer version of Shoal wrote it.
        """
        found = self._load(flow_uuid)
        state = contents.shown(found[_STATE]) if _STATE in found else None
        return state if isinstance(state, dict) else None

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Store a flow that waits for a person. Raises as `save_state`."""
        state = _plain(state_data)
        pending = {"context": _plain(context.to_dict()), "state": state}
        self._save(flow_uuid, context.method_name, {_STATE: state, _PENDING: pending})

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state of a flow that waits, and how to resume it; None if it does not wait. Raises as `load_state`."""
        pending = self._load(flow_uuid).get(_PENDING)
        if pending is None:
            return None
        return contents.shown(pending["state"]), PendingFeedbackContext.from_dict(contents.shown(pending["context"]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """The flow waits no longer."""
        if _PENDING in self._load(flow_uuid):
            thread = self._thread(flow_uuid)
            self._bridge.blocking(lambda: thread.update(remove=[_PENDING], metadata={NAME: FORM}))

    # ── on the store's loop ───────────────────────────────────────────────────

    def _thread(self, flow_uuid: str) -> Thread:
        """A handle without a position, so that a save builds on whatever is newest."""
        return self._space.thread(contents.name_of(flow_uuid, _UNSAFE))

    def _save(self, flow_uuid: str, method: str, channels: dict[str, Any]) -> None:
        thread = self._thread(flow_uuid)

        async def save() -> None:
            await self._newest(thread, channels=[])  # So that a newer form is not overwritten.
            await thread.update(channels, metadata={NAME: FORM, "method": method})

        self._bridge.blocking(save)

    def _load(self, flow_uuid: str) -> dict[str, Any]:
        thread = self._thread(flow_uuid)
        return self._bridge.blocking(lambda: self._newest(thread))

    async def _newest(self, thread: Thread, *, channels: list[str] | None = None) -> dict[str, Any]:
        try:
            found = await self._space.thread(thread.name).load(channels=channels)
        except NotFound:
            return {}
        contents.of_form(found.metadata, NAME, FORM)
        return found.state


def _plain(given: dict[str, Any] | BaseModel) -> Any:
    """A state as JSON, with what is none as text.

    Raises:
        InvalidValue: it cannot be; nothing was written.
    """
    if not isinstance(given, dict | BaseModel):
        raise InvalidValue(f"a state must be a dict or a pydantic model; got {type(given).__name__}. Nothing was written.")
    try:
        return contents.stored(json.loads(json.dumps(given, default=_as_json)), "the state")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"the state is no JSON: {error}. Nothing was written.") from None


def _as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        try:
            return value.model_dump(mode="json")
        except ValueError:  # A field has a type that pydantic cannot write: it becomes text.
            return value.model_dump(mode="python")
    if isinstance(value, set | frozenset):
        return list(value)
    return value.isoformat() if isinstance(value, date) else str(value)
