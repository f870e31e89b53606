"""The spans of an embedded store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import SpanProcessor

import shoal
from shoal.errors import HeadMoved, StepFailed
from shoal.traces.spans import ATTRIBUTE_CHARS_MAX
from tests.traces.recording import Recorded, attributes, recording

WRITE = ["  shoal.queue", "  shoal.decide", "  shoal.commit"]


async def test_a_save_shows_queue_decision_and_commit(tmp_path: Path, recorded: Recorded) -> None:
    async with shoal.open(tmp_path) as store:
        await store.space("crew").thread("t").save({"a": 1})
        await store.space("crew").thread("t").load()
    assert recorded.tree() == ["shoal save", *WRITE, "shoal load", "  shoal.queue"]
    assert attributes(recorded.one("shoal save")) == {
        "db.system.name": "shoal",
        "db.operation.name": "save",
        "shoal.durability": "local",
    }
    assert attributes(recorded.one("shoal.commit")) == {"shoal.commit.number": 1, "shoal.commit.writes": 1}


async def test_a_stage_begins_as_the_one_before_ends(tmp_path: Path, recorded: Recorded) -> None:
    async with shoal.open(tmp_path) as store:
        await store.space("crew").thread("t").save({"a": 1})
    save, queue, decide, commit = recorded.spans
    assert save.start_time == queue.start_time
    assert queue.end_time == decide.start_time
    assert decide.end_time == commit.start_time
    assert commit.end_time is not None
    assert save.end_time is not None
    assert commit.end_time <= save.end_time


async def test_writes_of_one_group_commit_are_linked(tmp_path: Path, recorded: Recorded) -> None:
    async with shoal.open(tmp_path) as store:
        await store.space("crew").counter("first").add(1)
        recorded.clear()
        await asyncio.gather(*(store.space("crew").counter(name).add(1) for name in "abc"))
    first, *others = recorded.named("shoal.commit")
    assert [attributes(span)["shoal.commit.writes"] for span in (first, *others)] == [3, 3, 3]
    assert {link.context.span_id for link in first.links} == {span.context.span_id for span in others}
    assert [[link.context.span_id for link in span.links] for span in others] == [[first.context.span_id]] * 2


async def test_a_tool_call_of_the_ledger_holds_what_it_does(tmp_path: Path, recorded: Recorded) -> None:
    async with shoal.open(tmp_path) as store:
        thread = store.space("crew").thread("t")

        async def call() -> int:
            await store.space("crew").counter("paid").add(1)
            return 7

        assert await thread.step("pay", call=call, key="order-17") == 7
    assert recorded.tree() == [
        "execute_tool pay",
        "  shoal begin-step",
        *(f"  {line}" for line in WRITE),
        "  shoal add",
        *(f"  {line}" for line in WRITE),
        "  shoal end-step",
        *(f"  {line}" for line in WRITE),
    ]
    assert attributes(recorded.one("execute_tool pay")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "pay",
        "gen_ai.tool.type": "function",
        "shoal.step.attempt": 1,
        "shoal.step.replayed": False,
    }


async def test_a_replayed_run_calls_no_tool(tmp_path: Path, recorded: Recorded) -> None:
    async def run() -> list[int]:
        async with shoal.open(tmp_path) as store:
            thread = store.space("crew").thread("t")
            return [await thread.step(name, call=lambda: 7) for name in ("look", "pay")]

    assert await run() == [7, 7]
    first = recorded.tree()
    recorded.clear()
    assert await run() == [7, 7]
    assert recorded.tree() == [
        "execute_tool look",
        "  shoal begin-step",
        "    shoal.queue",
        "    shoal.decide",
        "execute_tool pay",
        "  shoal begin-step",
        "    shoal.queue",
        "    shoal.decide",
    ]
    assert "  shoal end-step" in first
    assert [attributes(recorded.one(f"execute_tool {name}"))["shoal.step.replayed"] for name in ("look", "pay")] == [True, True]


async def test_a_tool_that_raises_shows_the_class_alone(tmp_path: Path, recorded: Recorded) -> None:
    def call() -> None:
        raise ValueError("card 4111 1111 1111 1111")

    async with shoal.open(tmp_path) as store:
        thread = store.space("crew").thread("t")
        with pytest.raises(ValueError, match="card"):
            await thread.step("pay", call=call, attempts=1)
        with pytest.raises(StepFailed):
            await thread.step("pay", call=call, attempts=1)
    failed, refused = recorded.named("execute_tool pay")
    assert (attributes(failed)["error.type"], failed.status.description) == ("ValueError", "ValueError")
    assert attributes(refused)["error.type"] == "step-failed"
    assert "4111" not in "".join(span.to_json() for span in recorded.spans)


async def test_an_error_shows_its_code_and_what_was_written(tmp_path: Path, recorded: Recorded) -> None:
    async with shoal.open(tmp_path) as store:
        thread = store.space("crew").thread("secret-name")
        await thread.save({"a": 1})
        with pytest.raises(HeadMoved):
            await thread.save({"a": 2}, expect_head="")
    failed = recorded.named("shoal save")[-1]
    assert {"error.type": "head-moved", "shoal.written": "no"}.items() <= attributes(failed).items()
    assert failed.status.description == "head-moved"
    assert failed.events == ()


@pytest.mark.answers("trace-shows-content")
async def test_names_are_shown_only_if_an_operator_wants_it(tmp_path: Path) -> None:
    secret = "s" * 200
    shown: dict[str, str] = {}
    for names in ("none", "tools", "all", "another word"):
        with recording(names=names) as recorded:
            async with shoal.open(tmp_path / names) as store:
                thread = store.space("the-space").thread("the-thread")
                await thread.save({"the-channel": "the-value"}, metadata={"m": secret})
                await thread.step("the-tool", call=lambda: "the-result", key="the-key", arguments="the-argument")
        shown[names] = "".join(span.to_json() for span in recorded.spans)
        assert all(len(str(value)) <= ATTRIBUTE_CHARS_MAX for span in recorded.spans for value in attributes(span).values())
    for hidden in ("the-channel", "the-value", "the-result", "the-argument", secret[:20]):
        assert not [names for names, text in shown.items() if hidden in text]
    for name in ("the-space", "the-thread", "the-key"):
        assert [names for names, text in shown.items() if name in text] == ["all"]
    assert [names for names, text in shown.items() if "the-tool" in text] == ["tools", "all"]


async def test_long_names_are_cut(tmp_path: Path) -> None:
    with recording(names="all") as recorded:
        async with shoal.open(tmp_path) as store:
            await store.space("crew").thread("t" * 300).save({})
    assert attributes(recorded.one("shoal save"))["shoal.object"] == "t" * ATTRIBUTE_CHARS_MAX


class Broken(SpanProcessor):
    """Raises where it is called."""

    def __init__(self, where: str) -> None:
        setattr(self, where, self._raise)

    def _raise(self, *_: object, **__: object) -> None:
        raise RuntimeError("broken")


@pytest.mark.answers("trace-fails-a-request")
@pytest.mark.parametrize("where", ["on_start", "on_end"])
async def test_a_provider_that_raises_fails_no_request(
    tmp_path: Path, recorded: Recorded, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded.provider.add_span_processor(Broken(where))
    async with shoal.open(tmp_path) as store:
        thread = store.space("crew").thread("t")
        await thread.save({"a": 1})
        assert await thread.step("pay", call=lambda: 7) == 7
        assert (await thread.load()).state == {"a": 1}
    assert len([record for record in caplog.records if record.name == "shoal.traces"]) == 1


async def test_calls_are_within_the_span_of_the_program(tmp_path: Path, recorded: Recorded) -> None:
    tracer = recorded.provider.get_tracer("program")
    async with shoal.open(tmp_path) as store:
        with tracer.start_as_current_span("turn"):
            await store.space("crew").thread("t").save({})
    assert recorded.tree() == ["turn", "  shoal save", *(f"  {line}" for line in WRITE)]


def test_a_blocking_store_is_within_the_span_of_its_thread(tmp_path: Path, recorded: Recorded) -> None:
    tracer = recorded.provider.get_tracer("program")
    with shoal.sync.open(tmp_path) as store, tracer.start_as_current_span("turn"):
        thread = store.space("crew").thread("t")
        thread.save({})
        assert thread.step("pay", call=lambda: 7) == 7
        with thread.begin("look") as step:
            step.result = 8
    assert recorded.tree()[:2] == ["turn", "  shoal save"]
    assert [span.parent is not None for span in recorded.named("execute_tool pay") + recorded.named("execute_tool look")] == [
        True,
        True,
    ]
