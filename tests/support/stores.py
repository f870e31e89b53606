"""A store that holds something of everything."""

from __future__ import annotations

from contextlib import suppress

from shoal import Store
from shoal.kinds.worklist.handle.worklist import Worklist


async def filled(store: Store) -> None:
    """Fill space "crew"."""
    space = store.space("crew")
    thread = space.thread("t", author="ana", configuration={"model": "m-1"})
    first = await thread.save({"messages": ["a"], "plan": {"x": 1.5, "raw": b"\x00"}}, metadata={"team": "red"}, label="start")
    await thread.save({"messages": ["a", "b"], "plan": {"x": 1.5, "raw": b"\x00"}})
    await thread.branch("what-if", at=first.id)
    beside = space.thread("t", author="bo")
    await beside.load(branch="what-if")
    await beside.save({"messages": ["a", "c"]}, branch="what-if")
    await thread.rollback(first.id, reason="no")
    await thread.save({"messages": ["a", "d"], "plan": {"x": 2}}, label="best")
    one, two = space.thread("forked"), space.thread("forked")
    await one.save({"n": 0})
    await two.load()
    await one.save({"n": 1})
    await two.save({"n": 2}, on_conflict="fork")
    await thread.journal.append({"kind": "order", "n": 1}, key="order-1")
    event = await thread.journal.append(("secret", 1))
    await thread.journal.append(None)
    await thread.journal.erase(event.id)
    await thread.journal.retain(events=1000)

    async def result() -> dict[str, int]:
        return {"receipt": 17}

    async def fails() -> None:
        raise ValueError("no")

    await thread.step("bill", key="s-1", call=result, arguments={"of": 3})
    with suppress(ValueError):
        await thread.step("mail", key="s-2", call=fails)
    await thread.put_file("page.png", bytes(range(256)) * 6000)
    await thread.put_file("empty", b"")
    await thread.worklist("pages").add(["p-1", "p-2"])
    await thread.worklist("pages").done("p-1", result={"words": 5})
    await _worked(thread.worklist("jobs"))
    await thread.inbox.send({"text": "stop"}, by="ada")
    await thread.pause(reason="look", by="ana")
    await space.counter("tokens").add(512)
    await space.set("urls").add("a", (1, 2), 3.5)
    await space.register("goal").set({"reach": "Mars"}, by="ana")
    await space.list("plan").push("write", "test")
    await space.map("votes").set("colour", "blue")
    await space.map("votes").add("blue", 3)
    await space.budget("money").grant(100)
    await space.budget("money").spend(30)
    await space.items.put(("memory", "user-1"), "likes", {"tea": True})
    await space.items.put(("memory",), "short", 1, ttl=3600)
    await space.items.index(("memory",), "tea")
    await space.schemas.put("plan", 1, {"type": "object"})
    document = await space.document("notes", initial={"tasks": {"t1": "write"}}, author="ana")
    document.map("tasks")["t2"] = "test"
    await document.close()


async def _worked(work: Worklist) -> None:
    """A worklist with an item in each state that it can have."""
    await work.add({"dead": 1}, by="ana", attempts_max=1, priority=9)
    await work.add({"given back": 2}, priority=8, attempts_max=3)
    await work.add({"tried and done": 3}, priority=7)
    await work.add({"claimed": 4}, priority=6, group="example.org", group_max=2)
    await work.add({"late": 5}, delay=3600)
    for ends in ("fail", "fail", "complete", ""):
        job = await work.claim(ttl=600, holder="worker-7")
        assert job is not None
        if ends == "fail":
            await job.fail("no answer", retry_in=3600)
        elif ends == "complete":
            await job.complete({"pages": 3})
