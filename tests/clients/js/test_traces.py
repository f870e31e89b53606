"""The trace of a caller in JavaScript goes on at the node, and changes nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.clients.js.conftest import Program, Rejected, needs_node
from tests.traces.recording import SAMPLED, UNSAMPLED, Recorded, recording
from tests.traces.test_served import HOSTILE, serving

pytestmark = needs_node

TRACE, PARENT = int(SAMPLED[3:35], 16), int(SAMPLED[36:52], 16)
# Of each request that the client sends: its trace's headers.
NOTING = """
const sent = []
const noting = (url, init) => {
  sent.push([init.headers.traceparent ?? null, init.headers.tracestate ?? null])
  return fetch(url, init)
}
const store = shoal.connect(given.url, { trace: () => given.trace ?? undefined, fetch: noting })
const space = store.space('crew')
"""


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as spans:
        yield spans


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path) as at:
        yield at


async def test_a_call_belongs_to_the_trace_of_its_caller(js: Program, url: str, recorded: Recorded) -> None:
    await js(NOTING + "await space.counter('n').add(1)", {"url": url, "trace": SAMPLED})
    door = recorded.one("POST /v1/spaces/{space}/counters/{counter}")
    assert door.parent is not None
    assert (door.context.trace_id, door.parent.span_id) == (TRACE, PARENT)
    assert recorded.one("shoal add").context.trace_id == TRACE


async def test_a_caller_that_records_nothing_decides_that_for_the_node(js: Program, url: str, recorded: Recorded) -> None:
    await js(NOTING + "await space.counter('n').add(1)", {"url": url, "trace": UNSAMPLED})
    assert recorded.spans == []


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (SAMPLED, [SAMPLED, None]),
        ({"traceparent": SAMPLED, "tracestate": "v=1"}, [SAMPLED, "v=1"]),
        ({"traceparent": SAMPLED, "tracestate": "x" * 513}, [SAMPLED, None]),
        ({"traceparent": SAMPLED, "tracestate": "v=\n"}, [SAMPLED, None]),
        ({"tracestate": "v=1"}, [None, None]),
        ({}, [None, None]),
        (None, [None, None]),
        (7, [None, None]),
        *((text, [None, None]) for text in HOSTILE.values()),
    ],
)
async def test_only_a_legal_context_is_sent(js: Program, url: str, trace: object, expected: list[str | None]) -> None:
    told = await js(NOTING + "await space.counter('n').value(); return sent", {"url": url, "trace": trace})
    assert told == [expected]


async def test_a_function_that_throws_fails_no_call(js: Program, url: str) -> None:
    told = await js(
        """const trace = () => { throw new Error('mine') }
        return shoal.connect(given, { trace }).space('crew').counter('n').add(1)""",
        url,
    )
    assert told == 1


async def test_the_trace_is_asked_for_once_and_before_anything_is_waited_for(js: Program, url: str) -> None:
    """A tracer for pages knows the span under way only until the caller's function has returned."""
    told = await js(
        """let [now, asked, failed] = ['', [], 0]
        const trace = () => { asked.push(now); return given.trace }
        const flaky = (url, init) => failed++ ? fetch(url, init) : Promise.reject(new TypeError('lost'))
        const store = shoal.connect(given.url, { trace, token: async () => 'a.b', fetch: flaky, retryDelayMs: 1 })
        now = 'within'
        const added = store.space('crew').counter('n').add(1)
        now = 'later'
        await added
        return asked""",
        {"url": url, "trace": SAMPLED},
    )
    assert told == ["within"]


async def test_files_and_watches_are_sent_with_it(js: Program, url: str) -> None:
    told = await js(
        NOTING
        + """await space.files.put('a', 'bytes')
        await (await space.files.open('a')).text()
        for await (const event of space.watch()) break
        return sent""",
        {"url": url, "trace": SAMPLED},
    )
    assert told == [[SAMPLED, None]] * 3


async def test_an_edit_of_a_document_belongs_to_the_trace_in_which_it_was_opened(
    js: Program, url: str, recorded: Recorded
) -> None:
    await js(
        """const { Y, WebsocketProvider, WebSocket } = await parts.yjs()
        const doc = new Y.Doc()
        const store = shoal.connect(given.url, { trace: () => given.trace })
        const document = await store.space('crew').document('plan', { doc, WebsocketProvider, WebSocket })
        doc.getText('text').insert(0, 'hello')
        await document.saved()
        document.destroy()""",
        {"url": url, "trace": SAMPLED},
    )
    written = [span for span in recorded.spans if span.kind.name == "SERVER"]
    assert written
    assert {span.context.trace_id for span in written} == {TRACE}


async def test_an_option_that_is_no_function_is_refused(js: Program) -> None:
    with pytest.raises(Rejected) as wrong:
        await js("shoal.connect('http://n1', { trace: given })", SAMPLED)
    assert (wrong.value.code, wrong.value.written) == ("invalid-input", "no")
