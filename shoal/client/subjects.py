"""The data subjects of a space: `space.subjects`."""

from __future__ import annotations

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.protocol.requests import Durability
from shoal.workflows import subjects
from shoal.workflows.subjects import SubjectKind, SubjectReport, SubjectTag


@named
class Subjects:
    """Which objects of a space carry data about which person, so that all of it can be found and erased.

    Tag an object before it is written for the first time: then nothing is stored that no erasure finds.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def tag(
        self, subject: str, kind: SubjectKind, name: str, part: str = "", *, durability: Durability | None = None
    ) -> bool:
        """Tag an object, which need not exist yet. False if it is tagged already.

        `kind`: thread, document, items, map, set, counter, register, budget, or event. `name` is the object's; of items the
        labels of their namespace, joined by periods; of an event its thread's. `part`: the key of an item or of a map's entry,
        a member of a set as JSON, or an event's id; empty for the whole object.

        Raises:
            InvalidInput, InvalidName: there is no such kind, it has no parts, or a name is not legal.
        """
        found = [SubjectTag(kind, name, part)]
        return bool(await subjects.write_tag(self._connection, self._space, subject, found, durability=durability))

    async def untag(
        self, subject: str, kind: SubjectKind, name: str, part: str = "", *, durability: Durability | None = None
    ) -> bool:
        """Remove a tag; the object stays. False if there was none.

        Raises:
            InvalidInput, InvalidName: as `tag`.
        """
        found = [SubjectTag(kind, name, part)]
        return bool(await subjects.write_tag(self._connection, self._space, subject, found, remove=True, durability=durability))

    async def find(self, subject: str) -> list[SubjectTag]:
        """The objects that are tagged with a subject."""
        return await subjects.find(self._connection, self._space, subject)

    async def erase(self, subject: str, *, durability: Durability | None = None) -> SubjectReport:
        """Delete all that is tagged with a subject, on every node, and then its tags. This cannot be undone.

        The report says what became of each object. What was tagged meanwhile, or at a node that was away, is found when it is
        erased again.
        """
        report, _ = await subjects.erase(self._connection, self._space, subject, durability=durability)
        return report
