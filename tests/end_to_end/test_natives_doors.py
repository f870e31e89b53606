"""Sets, registers and their likes at every door: what one writes the others show."""

from __future__ import annotations

import pytest

from shoal.client.store import Space
from tests.end_to_end.conftest import Cli, Rest


async def test_sets(space: Space, rest: Rest, cli: Cli) -> None:
    assert await rest("POST", "/sets/urls", {"add": ["a", {"x": 1}, 7]}) == {"added": 3, "removed": 0, "size": 3}
    assert await rest("POST", "/sets/urls", {"add": ["b", "a"], "remove": [7]}) == {"added": 1, "removed": 1, "size": 3}
    assert await space.set("urls").contains({"x": 1})
    assert await cli("set", "add", "urls", '"c"') == [{"added": 1, "removed": 0, "size": 4}]
    assert await rest("POST", "/sets/urls/contains", {"elements": ["c", 7]}) == {"contained": [True, False]}
    assert (await rest("GET", "/sets?prefix=u"))["names"] == ["urls"]
    assert await rest("GET", "/sets/never") == {"members": [], "size": 0, "cursor": "", "more": False}
    found, after = [], ""
    while True:
        page = await rest("GET", f"/sets/urls?limit=1&after={after}")
        found += page["members"]
        after = page["cursor"]
        if not page["more"]:
            break
    assert found == await space.set("urls").members() == await cli("set", "get", "urls")
    assert len(found) == 4


async def test_a_register_that_expects(space: Space, rest: Rest) -> None:
    made = await rest("PUT", "/registers/goal", {"value": "a", "expect": ""})
    assert (await rest("GET", "/registers/goal"))["version"] == made["version"] == (await space.register("goal").read()).version
    refused = await rest("PUT", "/registers/goal", {"value": "b", "expect": ""}, status=412)
    assert refused["code"] == "register-changed"
    await rest("PUT", "/registers/goal", {"value": "b", "expect": made["version"]})
    assert await space.register("goal").get() == "b"


async def test_a_register_that_is_compared_and_set(space: Space, rest: Rest, cli: Cli) -> None:
    path = "/registers/leader/compare-and-set"
    made = await rest("POST", path, {"expected": None, "value": "one"})
    assert made["version"] == (await space.register("leader").read()).version
    refused = await rest("POST", path, {"expected": None, "value": "two"}, status=412)
    assert (refused["code"], refused["version"], refused["value"]) == ("register-changed", made["version"], "'one'")
    assert (await cli("register", "compare-and-set", "leader", '"one"', '"two"'))[0]["version"]
    assert (await space.register("leader").compare_and_set("two", "three")).value == "three"


async def test_budgets(space: Space, rest: Rest, cli: Cli) -> None:
    granted = {"remaining": 100, "granted": True}
    assert await rest("POST", "/budgets/tokens/grants", {"amount": 100, "key": "daily"}) == granted
    assert await rest("POST", "/budgets/tokens/grants", {"amount": 100, "key": "daily"}) == {**granted, "granted": False}
    assert await rest("POST", "/budgets/tokens/spends", {"amount": 30}) == {"remaining": 70, "rights": 70, "spent": True}
    assert await space.budget("tokens").spend(5) == 65
    assert (await cli("budget", "spend", "tokens", "5"))[0]["remaining"] == 60
    refused = await rest("POST", "/budgets/tokens/spends", {"amount": 61}, status=409)
    assert (refused["code"], refused["remaining"]) == ("budget-exhausted", 60)
    assert await rest("POST", "/budgets/tokens/releases", {"amount": 10}) == {"moved": 10, "rights": 50}
    assert await rest("POST", "/budgets/tokens/draws", {"amount": 55}) == {"moved": 5, "rights": 55}
    shown = await rest("GET", "/budgets/tokens")
    assert {name: shown[name] for name in ("granted", "spent", "remaining", "pool", "rights")} == {
        "granted": 100,
        "spent": 40,
        "remaining": 60,
        "pool": 5,
        "rights": 55,
    }
    assert (await rest("GET", "/budgets"))["names"] == ["tokens"]
    await rest("POST", "/budgets/tokens/spends", {"amount": 0}, status=400)


async def test_maps(space: Space, rest: Rest, cli: Cli) -> None:
    made = await rest("PUT", "/maps/plan/goal", {"value": "Mars", "expect": ""})
    assert (await rest("PUT", "/maps/plan/goal", {"value": "Moon", "expect": ""}, status=412))["code"] == "register-changed"
    assert await rest("POST", "/maps/plan/calls/counter", {"add": 5}) == {}
    assert await rest("POST", "/maps/plan/tags/set", {"add": ["a", "b"]}) == {"added": 2, "removed": 0, "size": 2}
    assert await rest("POST", "/maps/plan/tags/set", {"remove": ["a"]}) == {"added": 0, "removed": 1, "size": 1}
    await rest("POST", "/maps/plan/tags/set", {"add": 1}, status=400)
    goal = await rest("GET", "/maps/plan/goal")
    assert [sibling["value"] for sibling in goal.pop("siblings")] == ["Mars"]
    assert goal == {"key": "goal", "version": made["version"], "count": None, "members": []}
    page = await rest("GET", "/maps/plan?limit=2")
    assert ([entry["key"] for entry in page["entries"]], page["size"], page["more"]) == (["calls", "goal"], 3, True)
    page = await rest("GET", "/maps/plan?after=goal")
    assert ([entry["members"] for entry in page["entries"]], page["more"]) == ([["b"]], False)
    assert await space.map("plan").get("calls") == 5
    assert await cli("map", "get", "plan") == (await rest("GET", "/maps/plan"))["entries"]
    assert await rest("DELETE", "/maps/plan/goal?dry_run=true") == {"removed": True}
    assert await rest("DELETE", "/maps/plan/goal") == {"removed": True}
    await rest("GET", "/maps/plan/goal", status=404)
    assert (await rest("GET", "/maps"))["names"] == ["plan"]
    writes = [
        {"op": "put-entry", "map": "{x}/m", "key": "k", "value": 1},
        {"op": "add-entry", "map": "{x}/m", "key": "n", "add": 2},
        {"op": "alter-entry", "map": "{x}/m", "key": "s", "add": [3]},
        {"op": "remove-entry", "map": "{x}/m", "key": "k"},
    ]
    replies = (await rest("POST", "/batch", {"writes": writes}))["replies"]
    assert replies[1:] == [{}, {"added": 1, "removed": 0, "size": 1}, {"removed": True}]
    assert [entry.value for entry in await space.map("{x}/m").entries()] == [2, [3]]


async def test_a_batch(space: Space, rest: Rest) -> None:
    writes = [
        {"op": "alter-set", "set": "{x}/s", "add": [1, 2]},
        {"op": "set", "register": "{x}/r", "value": 1, "expect": ""},
        {"op": "add", "counter": "{x}/c", "add": 5},
        {"op": "grant", "budget": "{x}/b", "amount": 9},
    ]
    replies = (await rest("POST", "/batch", {"writes": writes}))["replies"]
    assert replies[0] == {"added": 2, "removed": 0, "size": 2}
    assert (await space.set("{x}/s").len(), await space.counter("{x}/c").value()) == (2, 5)
    assert replies[3] == {"remaining": 9, "granted": True}
    await rest("POST", "/batch", {"writes": writes}, status=412)
    assert await space.counter("{x}/c").value() == 5


@pytest.mark.parametrize("kind", ["counter", "register", "set", "map", "budget"])
async def test_a_deletion(space: Space, rest: Rest, cli: Cli, kind: str) -> None:
    handle = getattr(space, kind)("x")
    writes = {"counter": ["add", "5"], "register": ["set", "5"], "set": ["add", "5"], "map": ["set", "k", "5"]}
    verb, *rest_of_it = writes.get(kind, ["grant", "5"])
    for delete in (
        lambda: handle.delete(),
        lambda: rest("DELETE", f"/{kind}s/x"),
        lambda: cli(kind, "delete", "x", "--yes"),
    ):
        await cli(kind, verb, "x", *rest_of_it)
        assert (await rest("GET", f"/{kind}s"))["names"] == ["x"]
        assert await delete() in (True, {"existed": True}, [{"existed": True}])
        assert (await rest("GET", f"/{kind}s"))["names"] == []
    assert await handle.delete() is False
