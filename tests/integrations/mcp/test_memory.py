"""`shoal mcp --memory` answers as the reference memory server does, and keeps what several processes write at once."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integrations.mcp.conftest import answer, client, refusal

NINE = {
    "create_entities",
    "create_relations",
    "add_observations",
    "delete_entities",
    "delete_observations",
    "delete_relations",
    "read_graph",
    "search_nodes",
    "open_nodes",
}


def entity(name: str, *observations: str, kind: str = "person") -> dict[str, Any]:
    return {"name": name, "entityType": kind, "observations": list(observations)}


def relation(source: str, kind: str, target: str) -> dict[str, str]:
    return {"from": source, "to": target, "relationType": kind}


async def test_the_nine_tools_answer_with_the_reference_shapes(target: list[str]) -> None:
    ann, bob, knows = entity("Ann", "z first", "a second"), entity("Bob"), relation("Ann", "knows", "Bob")
    async with client(*target, "--memory") as made:
        assert {tool.name for tool in (await made.list_tools()).tools} == NINE
        assert await answer(made, "read_graph") == {"entities": [], "relations": []}
        assert await answer(made, "create_entities", entities=[ann, bob]) == {"entities": [ann, bob]}
        assert await answer(made, "create_entities", entities=[entity("Ann", "other")]) == {"entities": []}
        assert await answer(made, "create_relations", relations=[knows, knows]) == {"relations": [knows]}
        assert await answer(made, "create_relations", relations=[knows]) == {"relations": []}
        added = await answer(made, "add_observations", observations=[{"entityName": "Ann", "contents": ["z first", "third"]}])
        assert added == {"results": [{"entityName": "Ann", "addedObservations": ["third"]}]}
        ann = entity("Ann", "z first", "a second", "third")
        assert await answer(made, "read_graph") == {"entities": [ann, bob], "relations": [knows]}
        assert await answer(made, "search_nodes", query="THIRD") == {"entities": [ann], "relations": [knows]}
        assert await answer(made, "search_nodes", query="nothing") == {"entities": [], "relations": []}
        assert await answer(made, "open_nodes", names=["Bob", "Nix"]) == {"entities": [bob], "relations": [knows]}
        gone = await answer(made, "delete_observations", deletions=[{"entityName": "Ann", "observations": ["third", "none"]}])
        assert gone == {"success": True, "message": "Observations deleted successfully"}
        gone = await answer(made, "delete_relations", relations=[relation("Ann", "hates", "Bob")])
        assert gone == {"success": True, "message": "Relations deleted successfully"}
        assert (await answer(made, "read_graph"))["relations"] == [knows]
        gone = await answer(made, "delete_entities", entityNames=["Bob", "Nix"])
        assert gone == {"success": True, "message": "Entities deleted successfully"}
        assert await answer(made, "read_graph") == {"entities": [entity("Ann", "z first", "a second")], "relations": []}


async def test_an_impossible_memory_request_writes_nothing(target: list[str]) -> None:
    async with client(*target, "--memory") as made:
        await answer(made, "create_entities", entities=[entity("Ann")])
        both = [{"entityName": "Ann", "contents": ["x"]}, {"entityName": "Nix", "contents": ["x"]}]
        refused = await refusal(made, "add_observations", observations=both)
        assert "Entity with name Nix not found. Nothing was written." in refused
        for wrong in ([entity("n" * 2048)], [entity("Eve", "o" * 5000)], [{"name": "Eve"}], "Eve"):
            assert "Nothing was written" in await refusal(made, "create_entities", entities=wrong)
        assert (await answer(made, "read_graph"))["entities"] == [entity("Ann")]


async def test_two_servers_that_add_at_once_lose_nothing(url: str) -> None:
    async with client("--url", url, "--memory") as one, client("--url", url, "--memory") as other:
        await answer(one, "create_entities", entities=[entity("shared")])

        async def adds(made: Any, name: str) -> None:
            for n in range(20):
                await answer(made, "create_entities", entities=[entity(f"{name}{n}", "own")])
                await answer(
                    made, "add_observations", observations=[{"entityName": "shared", "contents": [f"{name}{n}", "same"]}]
                )
                await answer(made, "create_relations", relations=[relation("shared", "has", f"{name}{n}")])

        await asyncio.gather(adds(one, "a"), adds(other, "b"))
        names = sorted(f"{name}{n}" for name in "ab" for n in range(20))
        for made in (one, other):
            graph = await answer(made, "read_graph")
            found = {each["name"]: each["observations"] for each in graph["entities"]}
            assert sorted(found.pop("shared")) == sorted([*names, "same"])
            assert found == {name: ["own"] for name in names}
            assert sorted(each["to"] for each in graph["relations"]) == names


async def test_observations_of_a_deleted_entity_stay_or_go_together(url: str) -> None:
    async with client("--url", url, "--memory") as one, client("--url", url, "--memory") as other:
        for _ in range(10):
            await answer(one, "create_entities", entities=[entity("shared", "old", kind="topic")])
            await asyncio.gather(
                other.call_tool("add_observations", {"observations": [{"entityName": "shared", "contents": ["new"]}]}),
                answer(one, "delete_entities", entityNames=["shared"]),
            )
            for left in (await answer(one, "read_graph"))["entities"]:
                assert left["entityType"] == "topic"
                assert left["observations"] == ["new"]
            await answer(one, "delete_entities", entityNames=["shared"])
