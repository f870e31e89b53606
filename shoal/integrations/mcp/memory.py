"""The nine tools of the reference memory server (`@modelcontextprotocol/server-memory`): a graph of entities and relations;
and the tools of threads.

    map  {memory}/entities     entity's name → a register with its type, and a set of its observations, each [place, text]
    set  {memory}/relations    [from, relation type, to]

Laws:
- There is no text of the whole graph: each call writes only what it adds or removes, as one operation, all or nothing. So
  processes that write at the same time, on any nodes, lose nothing of each other's.
- A call that is repeated changes nothing more.
- An entity that is deleted while another process adds to it stays, with what was added.

The tools of threads and their journals.

Laws:
- A whole state is saved only on the head that the caller names, so that no agent replaces work that it has not seen.
- Secret fields are hidden. A thread that has some is not written here, because what was hidden would be lost.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from shoal import values
from shoal.client.batch import Batch
from shoal.errors import InvalidInput, InvalidValue, NotFound
from shoal.integrations.mcp.views import Answer, Arguments, Call, Limit, Writing, reads, writes
from shoal.kinds.journal.handle import append_request
from shoal.kinds.map.handle import Entry, SharedMap
from shoal.kinds.set.handle import SharedSet
from shoal.kinds.thread.flows.checkpoints import Checkpoint
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


Name = Annotated[str, Meta(description="The thread's name.")]
Branch = Annotated[str, Meta(description="The thread's branch.")]
Metadata = Annotated[dict[str, Any], Meta(description="Small values about this checkpoint, shown in the history.")]


class LoadThread(Arguments):
    """Which state to load."""

    thread: Name
    branch: Branch = "main"
    checkpoint: Annotated[str, Meta(description="The id of an older checkpoint; left out: the newest.")] = ""
    channels: Annotated[list[str] | None, Meta(description="Only these parts of the state.")] = None


@reads
async def load_thread(call: Call, given: LoadThread) -> Answer:
    """Load the state of a thread: an agent's work so far. The answer's `id` is the `expect_head` of a later save."""
    found = await call.space.thread(given.thread).load(
        given.checkpoint or None,
        branch=given.branch if not given.checkpoint else None,
        channels=given.channels,
    )
    return {**_described(found), "heads": list(found.heads), "state": values.to_json(found.redacted)}


class SaveThread(Writing):
    """A whole state."""

    thread: Name
    state: Annotated[dict[str, Any], Meta(description="The whole state: named channels, each any JSON.")]
    expect_head: Annotated[
        str,
        Meta(description='The `id` that load_thread or the last save answered; "" for a thread that does not exist yet.'),
    ]
    branch: Branch = "main"
    metadata: Metadata = field(default_factory=dict)


@writes(destructive=True, idempotent=True)
async def save_thread(call: Call, given: SaveThread) -> Answer:
    """Save a thread's whole state as a new checkpoint. It is refused with HeadMoved if somebody saved meanwhile: load again."""
    await _check_nothing_hidden(call, given.thread, given.branch)
    saved = await call.space.thread(given.thread, author=call.author).save(
        _value(given.state),
        metadata=_value(given.metadata),
        branch=given.branch,
        expect_head=given.expect_head,
        key=call.key,
    )
    return _described(saved)


class EditThread(Writing):
    """Changes of parts of a state."""

    thread: Name
    set: Annotated[dict[str, Any], Meta(description="Channels to replace, with their new values.")] = field(
        default_factory=dict
    )
    append: Annotated[dict[str, list[Any]], Meta(description="Channels that are lists, with elements to add at the end.")] = (
        field(default_factory=dict)
    )
    remove: Annotated[list[str], Meta(description="Channels to remove.")] = field(default_factory=list)
    expect_head: Annotated[
        str | None, Meta(description="Only if this is the branch's head; left out: whatever the head is.")
    ] = None
    branch: Branch = "main"
    metadata: Metadata = field(default_factory=dict)


@writes(destructive=True)
async def edit_thread(call: Call, given: EditThread) -> Answer:
    """Change parts of a thread's state as a new checkpoint, and leave everything else as it is. Nobody's save is lost by it."""
    saved = await call.space.thread(given.thread, author=call.author).update(
        _value(given.set),
        append=_value(given.append),
        remove=given.remove,
        metadata=_value(given.metadata),
        branch=given.branch,
        expect_head=given.expect_head,
        key=call.key,
    )
    return _described(saved)


class ThreadHistory(Arguments):
    """Which checkpoints to list."""

    thread: Name
    branch: Branch = "main"
    before: Annotated[str, Meta(description="Continue before this checkpoint's id.")] = ""
    limit: Limit = 20


@reads
async def thread_history(call: Call, given: ThreadHistory) -> Answer:
    """List a thread's checkpoints, the newest first: their ids, times, authors and metadata."""
    found = call.space.thread(given.thread).history(branch=given.branch, before=given.before or None, limit=given.limit)
    return {"checkpoints": [{**_described(each), "time": each.time.isoformat(), "author": each.author} async for each in found]}


class AppendJournal(Writing):
    """An event."""

    thread: Name
    event: Annotated[Any, Meta(description="What happened: any JSON.")]


@writes()
async def append_journal(call: Call, given: AppendJournal) -> Answer:
    """Append an event to a thread's journal, which keeps events in order and never changes them."""
    # A key that the caller chose is the event's own, and is known as long as the event.
    own = given.idempotency_key or None
    request = append_request(call.space.name, given.thread, _value(given.event), key=own)
    reply = await call.connection.write(request, key=None if own else call.key, durability=None)
    return {"id": reply.id, "appended": reply.appended}


class ReadJournal(Arguments):
    """Which events to read."""

    thread: Name
    after: Annotated[str, Meta(description="The `cursor` of the last answer: only events that it does not cover.")] = ""
    limit: Limit = 100


@reads
async def read_journal(call: Call, given: ReadJournal) -> Answer:
    """Read the events of a thread's journal in order, from the first or after a cursor."""
    journal = call.space.thread(given.thread).journal
    found = []
    cursor = given.after
    async with aclosing(journal.read(after=_cursor(given.after), limit=given.limit)) as events:
        async for each in events:
            told = {"id": each.id, "time": each.time.isoformat(), "event": values.to_json(each.event)}
            found.append(told | {"erased": True} if each.erased else told)
            cursor = base64.urlsafe_b64encode(each.cursor).decode()
    return {"events": found, "cursor": cursor}


THREAD_TOOLS = (load_thread, save_thread, edit_thread, thread_history, append_journal, read_journal)


async def _check_nothing_hidden(call: Call, thread: str, branch: str) -> None:
    """Refuse to write a whole state over one with secret fields: what a client was not shown, it cannot save again."""
    try:
        head = await call.space.thread(thread).load(branch=branch, channels=[])
    except NotFound:
        return
    if head.secret:
        raise InvalidInput(
            f"thread {thread!r} has secret fields ({', '.join(head.secret)}), which this server hides. Nothing was written. "
            "Change other channels with edit_thread."
        )


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "id": checkpoint.id,
        "parents": list(checkpoint.parents),
        "branch": checkpoint.branch,
        "metadata": values.to_json(checkpoint.metadata),
    }


def _cursor(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True) or None
    except (binascii.Error, ValueError):
        raise InvalidValue(
            f"{text[:80]!r} is no cursor of a journal. Nothing was read. Give the `cursor` of an earlier answer, or none."
        ) from None


def _value(given: Any) -> Any:
    return values.from_json(given)
