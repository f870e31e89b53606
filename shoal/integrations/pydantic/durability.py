"""`ShoalDurability`: the requests to models and the calls of tools of an agent, as steps of a thread.

Other journals replay by position, and run tools one after another for that reason. Here a step's key is what is the same in
each repetition: the run, the operation and its number, or the id of the call of a tool.

Laws:
- Outside of `durable` the agent runs as without it. Inside, whatever pydantic_ai calls a durable unit is a step: its intent
  is stored before it, its result after it, and a step that has a result is not called again, by any process.
- A step that a crash interrupted may have happened: `StepUnresolved` is raised until somebody resolves it. Only what is
  declared idempotent is repeated: by default handlers of events and questions for tools, which change nothing.
- The result with which a person resolves a step is what the tool would have returned, or the model said.
- A run never goes two ways. If it went on after a request to a model that failed, the failure is part of the run.

Where a durable run is: which thread its steps belong to, and which keys they have.

Laws:
- A run that is repeated gives each step the key that it had before, also where tools ran side by side: the steps of a run,
  and those within a step, are counted apart, by what they do, and calls of tools by their ids.
- A key is never longer than a step's key may be; a longer one is replaced by its hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Literal, TypedDict, cast

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    CallableOperationBackend,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalOperationNamer,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_core import PydanticSerializationError, to_json

from shoal.errors import InvalidInput, InvalidValue, TooLarge
from shoal.integrations import contents
from shoal.integrations.contents import escaped, unsafe
from shoal.kinds.step.flows import StepRecord
from shoal.kinds.thread.handle.thread import Thread
from shoal.names import KEY_BYTES_MAX, check_key
from shoal.records import NamedTuple

_UNSAFE = unsafe()
_HASHED = "…"
"""Before the hash that stands for a key that would be too long."""


class Place:
    """The steps of one run, or those within one step."""

    def __init__(self, thread: Thread, prefix: str, *, arguments: Any = None) -> None:
        self.thread = thread
        self.prefix = prefix
        self.arguments = arguments  # Of the first request to a model: what the run was asked.
        self.failed = ""  # The key of a request to a model that has failed; empty if the last one has not.
        self._used: Counter[str] = Counter()

    def key(self, what: str) -> str:
        """The key of the next step that does this."""
        return _bounded(f"{self.prefix}/{self._numbered(what)}")

    def within(self, what: str, *, arguments: Any = None) -> Place:
        """The place of a run that begins here."""
        return Place(self.thread, self.key(what), arguments=arguments)

    def _numbered(self, what: str) -> str:
        what = escaped(what, _UNSAFE)
        number = self._used[what]
        self._used[what] += 1
        return f"{what}.{number}" if number else what


_here: ContextVar[Place | None] = ContextVar("shoal_pydantic_place", default=None)


def here() -> Place | None:
    """The place of this code; None outside of `durable`."""
    return _here.get()


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Run the block at a place."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def durable(thread: Thread, key: str) -> Iterator[None]:
    """`with durable(thread, key="order-17"):` runs of agents that have `ShoalDurability` are durable in the block.

    Their requests to models and calls of tools are steps of the thread. If the program dies, run the block again, with the
    same thread and key, in whatever process and on whatever node: what is done is not done again. `key` names the work, and
    is at most 255 bytes of text; the block must run the same agents, in the same order, with the same prompts.

    Raises:
        InvalidInput: `thread` is not a thread of an asynchronous store. Nothing was written.
        InvalidName: `key` is empty, too long, or holds control characters. Nothing was written.
    """
    if not isinstance(thread, Thread):
        raise InvalidInput(
            f"durable needs a thread, as from store.space(…).thread(…); got {type(thread).__name__}. Nothing was written."
        )
    with at(Place(thread, check_key("key of a durable run", key))):
        yield


def _bounded(key: str) -> str:
    packed = key.encode()
    return key if len(packed) <= KEY_BYTES_MAX else _HASHED + sha256(packed).hexdigest()


FORM = 1
"""The version of the form in which results are stored."""
NAME = "pydantic"
_METADATA = "shoal"


class RepeatedFailure(ModelAPIError):
    """A request to a model failed when the run was carried out first, and the run went on; so it fails again."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__("recorded", f"{kind}: {message}")


class NotSerialised(Exception):
    """The result of a step cannot be stored. It is never raised to callers: `ResultNotKept` is."""


class StepOptions(TypedDict, total=False):
    """How steps of one kind are carried out. See `Thread.step`."""

    idempotent: bool
    """Whether they may be repeated if a crash interrupts them. Without it somebody has to resolve them."""
    attempts: int
    """After so many failures `StepFailed` is raised. The default is the node's bound."""


_REPEATED = StepOptions(idempotent=True)


class ShoalDurability(BaseDurabilityCapability[AgentDepsT]):
    """A capability of pydantic_ai that makes an agent's runs inside of `durable` durable. It needs no server.

    The metadata of a tool can have options of its own: `@agent.tool(metadata={"shoal": {"idempotent": True}})`, or
    `{"shoal": False}` for a tool that is no step and runs each time.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Shoal",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        serialization_failure=NotSerialised,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=_METADATA,
    )

    def __init__(
        self,
        *,
        model: StepOptions | None = None,
        tools: StepOptions | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        """For one agent, which needs a name.

        Args:
            model: Of requests to models. `{"idempotent": True}` repeats one that a crash interrupted, which may be paid twice.
            tools: Of all calls of tools whose metadata say nothing else.
            models: Further models that runs may name; see pydantic_ai's other engines.
            event_stream_handler: Called with each event once, but perhaps again with one that a crash interrupted.
            name: The beginning of the names of all steps. It must never change; the default is the agent's name.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options = model or StepOptions()
        self._tool_options = tools or StepOptions()

    @property
    def in_durable_context(self) -> bool:
        """Whether this code runs inside of `durable`."""
        return here() is not None

    def get_durable_operation_backend(self) -> Steps:
        """The backend that carries out pydantic_ai's durable units."""
        return Steps(self.name, self.default_model_id, model=self._model_options, tools=self._tool_options)

    def get_default_run_id(self) -> str | None:
        """The same id for the same run, each time it is repeated."""
        place = here()
        return None if place is None else f"{place.thread.space}/{place.thread.name}/{place.key(f'{self.name}.run')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same id for the same run, each time it is repeated."""
        return None if here() is None else conversation_id_from_run_id(run_id)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent at a place of its own, with events in the same order each time."""
        place, agent = here(), self.agent
        if place is None or agent is None:
            return await handler()
        own = place.within(self.name, arguments={"prompt": _digest(ctx.prompt)})
        with at(own), replay_scope(), agent.parallel_tool_call_execution_mode("parallel_ordered_events"):
            return await super().wrap_run(ctx, handler=handler)


class Steps(CallableOperationBackend[StepOptions]):
    """Carries out durable units as steps of the thread at this place."""

    def __init__(self, agent: str, default_model_id: str | None, *, model: StepOptions, tools: StepOptions) -> None:
        self._agent = agent
        self._tools = tools
        super().__init__(
            namer=JournalOperationNamer(agent, default_model_id=default_model_id or "default"),
            config=RoleBasedOperationConfig(
                model=model, event=_REPEATED, capability=StepOptions(), tool=tools, resolve_tool=self._of_tool
            ),
        )

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        """Carry out a durable unit, or return what it has returned before.

        Raises:
            StepUnresolved: a crash interrupted it; whether it has happened is unknown.
            StepFailed, StepAbandoned, KeyReused, NoQuorum, ResultNotKept: see `Thread.step`.
            SchemaTooNew: a newer version of Shoal stored its result.
        """
        place = here()
        assert place is not None
        asks = isinstance(operation_id, ModelRequestId)
        unit = _Unit(operation_id, name, place.key(_described(operation_id, name.removeprefix(f"{self._agent}__"), cache_key)))
        if place.failed:
            await _passed(place)
        arguments = None
        if asks:
            arguments, place.arguments = place.arguments, None
        try:
            return await self._carried_out(place, unit, body, config, arguments)
        except Exception:
            if asks:
                place.failed = unit.key
            raise

    async def _carried_out(
        self, place: Place, unit: _Unit, body: Callable[[], Awaitable[object]], options: StepOptions, arguments: Any
    ) -> object:
        async with place.thread.begin(unit.name, key=unit.key, arguments=arguments, **options) as step:
            if step.done:
                record_durable_unit(executed=False)
                return _shown(unit, step.record)
            try:
                with at(Place(place.thread, unit.key)):
                    payload = await body()
                step.result = {NAME: FORM, "returned": contents.stored(payload, f"what {unit.name} returned")}
            except NotSerialised as error:  # The effect has happened: the step tells that its result is not kept.
                payload = step.result = error
            except (InvalidValue, TooLarge) as error:
                payload = step.result = NotSerialised(error)
        record_durable_unit(executed=True)
        return payload

    def _of_tool(self, id: DurableOperationId, tool: object | None, tool_name: str) -> StepOptions | Literal[False]:
        if not isinstance(id, ToolsetCallToolId):
            return _REPEATED  # A question for tools, or a check of arguments.
        metadata = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
        options = metadata.get(_METADATA, self._tools)
        if options is False:
            return False
        if not isinstance(options, dict) or not options.keys() <= StepOptions.__annotations__.keys():
            raise UserError(
                f"tool {tool_name!r} has the metadata {_METADATA!r}: {options!r:.100}. Nothing was called. "
                f"Give a dict of {', '.join(StepOptions.__annotations__)}, or False."
            )
        return cast("StepOptions", options)


class _Unit(NamedTuple):
    id: DurableOperationId
    name: str
    key: str


def _described(id: DurableOperationId, operation: str, cache_key: tuple[object, ...]) -> str:
    """A description of a unit, for its key: only what is the same whenever the run is repeated."""
    call = next((each.tool_call_id for each in cache_key if isinstance(each, RunContext)), None)
    if call is not None:
        return call if isinstance(id, ToolsetCallToolId) else f"{operation}.{call}"
    event = cache_key[0] if len(cache_key) == 1 else None
    kind = getattr(event, "event_kind", None)
    if kind is None:
        return operation
    part = getattr(event, "part", None)
    return ".".join(filter(None, [operation, kind, getattr(part, "tool_call_id", None)]))


def _shown(unit: _Unit, record: StepRecord) -> object:
    """The result of a step, as pydantic_ai decodes it; or raise the error that it has raised."""
    stored = record.result
    known = contents.of_form(stored, NAME, FORM)
    if known is None:
        return _resolved(unit, stored)
    if "raised" in known:
        error = known["raised"]
        raise RepeatedFailure(error.get("type", ""), error.get("message", ""))
    return contents.shown(known["returned"])


def _resolved(unit: _Unit, value: object) -> object:
    """The result with which a person has resolved a step, as pydantic_ai decodes it."""
    if isinstance(unit.id, ToolsetCallToolId):
        return {"kind": "tool_return", "result": value}
    if isinstance(unit.id, ModelRequestId) and isinstance(value, str):
        return {"kind": "response", "parts": [{"part_kind": "text", "content": value}]}
    return value


async def _passed(place: Place) -> None:
    """Make a failure part of the run, because the run goes on after it."""
    key, place.failed = place.failed, ""
    async for record in place.thread.steps():
        if record.key == key and record.state == "failed" and record.error is not None:
            value = {NAME: FORM, "raised": dict(record.error)}
            await place.thread.resolve(key, "result", value=value, by="shoal", reason="the run went on after this failure")


def _digest(prompt: object) -> str | None:
    try:
        return sha256(to_json(prompt)).hexdigest()
    except PydanticSerializationError:
        return None
