"""The nine tools of the reference memory server (`@modelcontextprotocol/server-memory`): a graph of entities and relations.

    map  {memory}/entities     entity's name → a register with its type, and a set of its observations, each [place, text]
    set  {memory}/relations    [from, relation type, to]

Laws:
- There is no text of the whole graph: each call writes only what it adds or removes, as one operation, all or nothing. So
  processes that write at the same time, on any nodes, lose nothing of each other's.
- A call that is repeated changes nothing more.
- An entity that is deleted while another process adds to it stays, with what was added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from shoal.client.batch import Batch
from shoal.errors import NotFound
from shoal.integrations.mcp.views import Answer, Arguments, Call, reads, writes
from shoal.kinds.map.handle import Entry, SharedMap
from shoal.kinds.set.handle import SharedSet
from shoal.records import NamedTuple

ENTITIES = "{memory}/entities"
RELATIONS = "{memory}/relations"


class Entity(Struct, forbid_unknown_fields=True):
    """An entity."""

    name: Annotated[str, Meta(description="The name of the entity")]
    entity_type: Annotated[str, Meta(description="The type of the entity")] = field(name="entityType")
    observations: Annotated[list[str], Meta(description="An array of observation contents associated with the entity")]


class Relation(Struct, forbid_unknown_fields=True, frozen=True):
    """A relation, in active voice."""

    source: Annotated[str, Meta(description="The name of the entity where the relation starts")] = field(name="from")
    target: Annotated[str, Meta(description="The name of the entity where the relation ends")] = field(name="to")
    kind: Annotated[str, Meta(description="The type of the relation")] = field(name="relationType")

    @property
    def stored(self) -> list[str]:
        """As an element of the set."""
        return [self.source, self.kind, self.target]


class Observations(Struct, forbid_unknown_fields=True):
    """The observations to add to one entity."""

    entity: Annotated[str, Meta(description="The name of the entity to add the observations to")] = field(name="entityName")
    contents: Annotated[list[str], Meta(description="An array of observation contents to add")]


class Unobserved(Struct, forbid_unknown_fields=True):
    """The observations to remove from one entity."""

    entity: Annotated[str, Meta(description="The name of the entity containing the observations")] = field(name="entityName")
    observations: Annotated[list[str], Meta(description="An array of observations to delete")]


class Found(NamedTuple):
    """An entity as it is stored."""

    name: str
    type: str
    observations: list[list[Any]]  # [place, text], in their order.

    @classmethod
    def of(cls, entry: Entry) -> Found:
        """The entity of a map's entry."""
        kind = entry.siblings[0] if entry.siblings else ""
        return cls(entry.key, str(kind), sorted(map(list, entry.members)))

    @property
    def texts(self) -> list[str]:
        """Its observations, each once: two processes may have added the same one."""
        return list(dict.fromkeys(text for _, text in self.observations))

    def placed(self, texts: Iterable[str]) -> list[list[Any]]:
        """Those of `texts` that it lacks, each with a place after all others."""
        there = set(self.texts)
        new = [text for text in dict.fromkeys(texts) if text not in there]
        first = self.observations[-1][0] + 1 if self.observations else 0
        return [[first + nth, text] for nth, text in enumerate(new)]

    def of_texts(self, texts: Sequence[str]) -> list[list[Any]]:
        """The stored elements with these texts."""
        return [each for each in self.observations if each[1] in texts]

    def shown(self) -> dict[str, Any]:
        """As the tools answer it."""
        return {"name": self.name, "entityType": self.type, "observations": self.texts}

    def matches(self, query: str) -> bool:
        """Whether its name, its type or an observation contains `query`, in lower case."""
        return any(query in text.lower() for text in (self.name, self.type, *self.texts))


class Graph:
    """The graph of one space."""

    def __init__(self, call: Call) -> None:
        self.space = call.space
        self.key = call.key
        self.entities: SharedMap = call.space.map(ENTITIES)
        self.relations: SharedSet = call.space.set(RELATIONS)

    async def entity(self, name: str) -> Found | None:
        """One entity; None if there is none."""
        entry = await self.entities.entry(name)
        return None if entry is None else Found.of(entry)

    async def all(self) -> list[Found]:
        """All entities, by name."""
        return [Found.of(each) async for each in self.entities.entries()]

    async def related(self) -> list[Relation]:
        """All relations."""
        return [Relation(source, target, kind) async for source, kind, target in self.relations.members()]

    def batch(self) -> Batch:
        """Writes that are applied together."""
        return self.space.batch(key=self.key)

    async def shown(self, chosen: list[Found]) -> Answer:
        """These entities, and the relations that begin or end at one of them."""
        names = {each.name for each in chosen}
        related = [each for each in await self.related() if each.source in names or each.target in names]
        return _graph(chosen, related)


class CreateEntities(Arguments):
    """Entities."""

    entities: list[Entity]


@writes(idempotent=True)
async def create_entities(call: Call, given: CreateEntities) -> Answer:
    """Create multiple new entities in the knowledge graph"""
    graph, created = Graph(call), dict[str, Found]()
    for each in given.entities:
        if each.name not in created and await graph.entity(each.name) is None:
            new = Found(each.name, each.entity_type, [])
            created[each.name] = new._replace(observations=new.placed(each.observations))
    async with graph.batch() as batch:
        for new in created.values():
            _put(batch, new, new.observations)
    return {"entities": [new.shown() for new in created.values()]}


class CreateRelations(Arguments):
    """Relations."""

    relations: list[Relation]


@writes(idempotent=True)
async def create_relations(call: Call, given: CreateRelations) -> Answer:
    """Create multiple new relations between entities in the knowledge graph. Relations should be in active voice"""
    graph = Graph(call)
    there = set(await graph.related())
    new = [each for each in dict.fromkeys(given.relations) if each not in there]
    if new:
        await graph.relations.add(*(each.stored for each in new), key=graph.key)
    return {"relations": list(map(_shown, new))}


class AddObservations(Arguments):
    """Observations, by entity."""

    observations: list[Observations]


@writes(idempotent=True)
async def add_observations(call: Call, given: AddObservations) -> Answer:
    """Add new observations to existing entities in the knowledge graph"""
    graph, results = Graph(call), []
    async with graph.batch() as batch:
        for each in given.observations:
            found = await graph.entity(each.entity)
            if found is None:
                raise NotFound(
                    f"Entity with name {each.entity} not found. Nothing was written. Create it with create_entities."
                )
            new = found.placed(each.contents)
            if new:
                _put(batch, found, new)
            results.append({"entityName": found.name, "addedObservations": [text for _, text in new]})
    return {"results": results}


class DeleteEntities(Arguments):
    """Names of entities."""

    names: Annotated[list[str], Meta(description="An array of entity names to delete")] = field(name="entityNames")


@writes(destructive=True, idempotent=True)
async def delete_entities(call: Call, given: DeleteEntities) -> Answer:
    """Delete multiple entities and their associated relations from the knowledge graph"""
    graph, names = Graph(call), set(given.names)
    gone = [each.stored for each in await graph.related() if each.source in names or each.target in names]
    async with graph.batch() as batch:
        for name in sorted(names):
            batch.map(ENTITIES).remove(name)
        if gone:
            batch.set(RELATIONS).remove(*gone)
    return {"success": True, "message": "Entities deleted successfully"}


class DeleteObservations(Arguments):
    """Observations, by entity."""

    deletions: list[Unobserved]


@writes(destructive=True, idempotent=True)
async def delete_observations(call: Call, given: DeleteObservations) -> Answer:
    """Delete specific observations from entities in the knowledge graph"""
    graph = Graph(call)
    async with graph.batch() as batch:
        for each in given.deletions:
            found = await graph.entity(each.entity)
            if found is not None and (gone := found.of_texts(each.observations)):
                batch.map(ENTITIES).exclude(found.name, *gone)
    return {"success": True, "message": "Observations deleted successfully"}


class DeleteRelations(Arguments):
    """Relations."""

    relations: Annotated[list[Relation], Meta(description="An array of relations to delete")]


@writes(destructive=True, idempotent=True)
async def delete_relations(call: Call, given: DeleteRelations) -> Answer:
    """Delete multiple relations from the knowledge graph"""
    graph = Graph(call)
    if given.relations:
        await graph.relations.remove(*(each.stored for each in given.relations), key=graph.key)
    return {"success": True, "message": "Relations deleted successfully"}


class ReadGraph(Arguments):
    """Nothing: it is the whole graph."""


@reads
async def read_graph(call: Call, _: ReadGraph) -> Answer:
    """Read the entire knowledge graph"""
    graph = Graph(call)
    return _graph(await graph.all(), await graph.related())


class SearchNodes(Arguments):
    """A text to look for."""

    query: Annotated[str, Meta(description="The search query to match against entity names, types, and observation content")]


@reads
async def search_nodes(call: Call, given: SearchNodes) -> Answer:
    """Search for nodes in the knowledge graph based on a query"""
    graph, query = Graph(call), given.query.lower()
    return await graph.shown([each for each in await graph.all() if each.matches(query)])


class OpenNodes(Arguments):
    """Names of entities."""

    names: Annotated[list[str], Meta(description="An array of entity names to retrieve")]


@reads
async def open_nodes(call: Call, given: OpenNodes) -> Answer:
    """Open specific nodes in the knowledge graph by their names"""
    graph = Graph(call)
    found = [await graph.entity(name) for name in dict.fromkeys(given.names)]
    return await graph.shown([each for each in found if each is not None])


TOOLS = (
    create_entities,
    create_relations,
    add_observations,
    delete_entities,
    delete_observations,
    delete_relations,
    read_graph,
    search_nodes,
    open_nodes,
)


def _put(batch: Batch, entity: Found, new: list[list[Any]]) -> None:
    """Add observations to an entity. Its type is written again, so that the entity stays whole if it is deleted meanwhile."""
    batch.map(ENTITIES).set(entity.name, entity.type)
    if new:
        batch.map(ENTITIES).include(entity.name, *new)


def _graph(entities: Iterable[Found], relations: Iterable[Relation]) -> Answer:
    return {"entities": [each.shown() for each in entities], "relations": list(map(_shown, relations))}


def _shown(relation: Relation) -> dict[str, str]:
    return {"from": relation.source, "to": relation.target, "relationType": relation.kind}
