"""LangGraph's checkpointers side by side on a growing conversation: memory, SQLite, and Shoal's."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks import trajectories
from benchmarks.figures import Effort, Figure, Section, Target, quantile
from shoal.integrations.langgraph import ShoalSaver

_STEPS, _FEW_THREADS, _MANY_THREADS = 200, 16, 128
_GROWN, _SMALL, _PUTS = 2000, 10, 30  # Messages, and puts of each list.
_TRAJECTORY = "tau_airline_gpt4o.jsonl.gz"

Saver = BaseCheckpointSaver[Any]
Opened = AbstractAsyncContextManager[Saver]


class Trial(NamedTuple):
    puts_per_s: float
    bytes_ratio: float  # On disk after close ÷ the messages as JSON; 0 in memory.


def run(effort: Effort) -> Section:
    messages = messages_of_trajectories()
    few = [_round(messages, _FEW_THREADS, every=True) for _ in range(effort.repeats)]
    many = [_round(messages, _MANY_THREADS, every=False) for _ in range(effort.repeats)]
    unchanged = tuple(asyncio.run(_unchanged_us()) for _ in range(effort.repeats))

    def rates(rounds: list[dict[str, Trial]], name: str, over: str = "") -> tuple[float, ...]:
        return tuple(trials[name].puts_per_s / (trials[over].puts_per_s if over else 1) for trials in rounds)

    def disk(name: str) -> tuple[float, ...]:
        return tuple(trials[name].bytes_ratio for trials in few)

    of_few, of_many = f"{_FEW_THREADS} threads", f"{_MANY_THREADS} threads"
    return Section(
        "LangGraph checkpointers",
        _METHOD,
        [
            Figure(f"durable puts, {of_few}", "1/s", rates(few, "local")),
            Figure("the same ÷ SQLite's saver", "×", rates(few, "local", "sqlite"), Target("≥", 6)),
            Figure("the same ÷ the saver in memory", "×", rates(few, "local", "memory"), Target("≥", 0.4)),
            Figure(f"durable puts, {of_many} ÷ the saver in memory", "×", rates(many, "local", "memory"), Target("≥", 0.5)),
            Figure(
                f"puts with `memory` durability, {of_few} ÷ the saver in memory",
                "×",
                rates(few, "unsynced", "memory"),
                Target("≥", 0.7),
            ),
            Figure("bytes on disk after close ÷ new data", "×", disk("local"), Target("≤", 1)),
            Figure("the same, SQLite's saver", "×", disk("sqlite")),
            Figure(f"SQLite's saver, {of_few}", "1/s", rates(few, "sqlite")),
            Figure(f"the saver in memory, {of_few}", "1/s", rates(few, "memory")),
            Figure(f"the saver in memory, {of_many}", "1/s", rates(many, "memory")),
            Figure(f"durable puts, {of_many}", "1/s", rates(many, "local")),
            Figure(f"one more put of {_GROWN:,} messages of 1 KB, per unchanged message", "µs", unchanged, Target("≤", 2)),
        ],
    )


_METHOD = (
    f"Each thread puts {_STEPS} checkpoints with a list that grows by one message of real trajectories (those of "
    f"`{_TRAJECTORY}` where they are there, else made ones), and a number; every put gives the whole list, as LangGraph does. "
    "The savers take turns within a repetition, each in a fresh directory, on asyncio's own loop, all in one process; ratios "
    "are taken within it. `local` is fsynced before it is acknowledged; SQLite's saver commits each put; the saver in memory "
    "keeps serialised values in dictionaries. New data is each message once as JSON. *One more put*: what it takes with "
    f"`memory` durability beyond a put of {_SMALL} messages and beyond LangGraph's serialiser, by the messages that did not "
    "change; medians."
)


def messages_of_trajectories() -> list[Any]:
    """As many as a conversation has steps."""
    source = trajectories.directory()
    found: list[Any] = []
    if source is not None:
        for name, messages in trajectories.read(source):
            if name.startswith(_TRAJECTORY.split(".")[0]):
                found += messages
            if len(found) >= _STEPS:
                return found[:_STEPS]
    return [{"role": "user", "content": f"{number}: " + "the quick brown fox " * 30} for number in range(_STEPS)]


def _round(messages: list[Any], threads: int, *, every: bool) -> dict[str, Trial]:
    """One trial of each saver."""
    savers: dict[str, Callable[[Path], Opened]] = {"memory": _in_memory, "local": _local}
    if every:
        savers |= {"sqlite": _sqlite, "unsynced": _unsynced}
    return {name: asyncio.run(_trial(opened, messages, threads)) for name, opened in savers.items()}


@asynccontextmanager
async def _in_memory(_: Path) -> AsyncIterator[Saver]:
    yield InMemorySaver()


def _local(directory: Path) -> Opened:
    return ShoalSaver.open(directory / "store")


def _unsynced(directory: Path) -> Opened:
    return ShoalSaver.open(directory / "store", durability="memory")


@asynccontextmanager
async def _sqlite(directory: Path) -> AsyncIterator[Saver]:
    async with AsyncSqliteSaver.from_conn_string(str(directory / "checkpoints.db")) as saver:
        await saver.setup()
        yield saver


async def _trial(opened: Callable[[Path], Opened], messages: list[Any], threads: int) -> Trial:
    with tempfile.TemporaryDirectory() as directory:
        async with opened(Path(directory)) as saver:
            began = perf_counter()
            configs = await asyncio.gather(*(converse(saver, f"thread-{number}", messages) for number in range(threads)))
            took = perf_counter() - began
            for config in configs:
                found = await saver.aget_tuple(config)
                assert found is not None
                assert found.checkpoint["channel_values"]["messages"] == messages
        used = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
    new = threads * sum(len(msgspec.json.encode(message)) for message in messages)
    return Trial(threads * len(messages) / took, used / new)


async def converse(saver: Saver, thread: str, messages: list[Any], took: list[float] | None = None) -> RunnableConfig:
    """Put a list that grows by one message each time; `took` gets the seconds of each put."""
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    said: list[Any] = []
    for step, message in enumerate(messages):
        said = [*said, message]
        began = perf_counter()
        config = await put(saver, config, said, step)
        if took is not None:
            took.append(perf_counter() - began)
    return config


async def put(saver: Saver, config: RunnableConfig, said: list[Any], step: int) -> RunnableConfig:
    """Put a list and a number."""
    checkpoint, version = empty_checkpoint(), f"{step + 1:032}.0"
    checkpoint["channel_values"] = {"messages": said, "step": step}
    checkpoint["channel_versions"] = {"messages": version, "step": version}
    return await saver.aput(
        config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {"messages": version, "step": version}
    )


async def _unchanged_us() -> float:
    """What an unchanged message costs a put beyond its serialising."""
    serde = JsonPlusSerializer()

    async def beyond_serialising(saver: Saver, size: int) -> float:
        config: RunnableConfig = {"configurable": {"thread_id": f"of-{size}", "checkpoint_ns": ""}}
        said = [{"role": "user", "content": f"{number}: " + "the quick brown fox jumps " * 39} for number in range(size)]
        config = await put(saver, config, said, 0)
        puts, serialised = [], []
        for step in range(1, _PUTS + 1):
            said = [*said, dict(said[0])]
            began = perf_counter()
            config = await put(saver, config, said, step)
            puts.append(perf_counter() - began)
            began = perf_counter()
            serde.dumps_typed(said)
            serialised.append(perf_counter() - began)
        return quantile(sorted(puts), 0.5) - quantile(sorted(serialised), 0.5)

    with tempfile.TemporaryDirectory() as directory:
        async with _unsynced(Path(directory)) as saver:
            few = await beyond_serialising(saver, _SMALL)
            return (await beyond_serialising(saver, _GROWN) - few) / (_GROWN - _SMALL) * 1e6
