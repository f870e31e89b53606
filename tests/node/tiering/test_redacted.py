"""Rules of redaction and threads that are away: what comes back holds what was stored, and what is added to it is looked at."""

from __future__ import annotations

import pytest

from shoal.errors import RedactionRefused
from simulation.world.bucket import SimulatedBucket
from tests.node.conftest import Bench
from tests.node.tiering.conftest import TARGET, TEXTS, URL, forget, mover_of, stubs

SECRET = "sk-ant-" + "Zq7" * 12
STAR = "[credentials]"


def has_secret(bench: Bench) -> bool:
    return any(SECRET.encode() in key + value for key, value in bench.storage.scan(b"", None))


async def test_a_redacted_thread_comes_back_redacted(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.redaction.set(credentials=True)
    handle = bench.space.thread("a")
    for text in TEXTS:
        await handle.save({"text": text, "key": f"my key is {SECRET}"})
    assert await mover_of(bench).move(TARGET, URL) > 0
    assert stubs(bench)
    forget(bench)
    assert (await bench.space.thread("a").load()).state == {"text": TEXTS[-1], "key": f"my key is {STAR}"}
    assert stubs(bench) == {}
    assert not has_secret(bench)


async def test_additions_to_a_thread_that_is_away_are_redacted(bench: Bench, bucket: SimulatedBucket) -> None:
    await bench.space.redaction.set(credentials=True)
    handle = bench.space.thread("a")
    for text in TEXTS:
        await handle.save({"messages": [text]})
    await mover_of(bench).move(TARGET, URL)
    forget(bench)
    await bench.space.thread("a").update({"last": SECRET}, append={"messages": [SECRET]})
    assert (await bench.space.thread("a").load()).state == {"messages": [TEXTS[-1], STAR], "last": STAR}
    assert not has_secret(bench)


async def test_rules_that_were_set_while_a_thread_was_away_hold(bench: Bench, bucket: SimulatedBucket) -> None:
    handle = bench.space.thread("a")
    for text in TEXTS:
        await handle.save({"text": text})
    await mover_of(bench).move(TARGET, URL)
    forget(bench)
    await bench.space.redaction.set(credentials=True)
    assert (await bench.space.thread("a").load()).state == {"text": TEXTS[-1]}
    await bench.space.thread("a").save({"text": SECRET}, overwrite=True)
    assert (await bench.space.thread("a").load()).state == {"text": STAR}
    with pytest.raises(RedactionRefused):
        await bench.space.thread("a").put_file("f", SECRET.encode())
    assert not has_secret(bench)
