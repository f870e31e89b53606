"""Sets over storage: adding and removing members, and pages of members.

Law: a member that is popped is removed by the operation that keeps the answer. So no later pop on this node returns it, and a
pop that is sent again with its key, to any node that holds the first, returns the same members.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from shoal import values
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import TooLarge
from shoal.kinds.set import state as orset
from shoal.names import check_name
from shoal.node.handler import Checks, Handler, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size
from shoal.protocol.requests import (
    AlterSet,
    ClearSet,
    ContainsMembers,
    MembersContained,
    PopSet,
    ReadSet,
    SetAltered,
    SetCleared,
    SetMembers,
    SetPopped,
)

SET_ELEMENT_BYTES_MAX = 4 * 1024  # One member of a set.


class Sets:
    """The handler of sets."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {
            AlterSet: self._check,
            ClearSet: self._check_name,
            PopSet: self._check_name,
        }
        self.writers: Writers = {AlterSet: self._alter, ClearSet: self._clear, PopSet: self._pop}
        self.readers: Readers = {ReadSet: self._read, ContainsMembers: self._contains}

    def _check(self, request: AlterSet) -> None:
        check_name("set", request.set)
        check_elements(self._config, [*request.add, *request.remove])

    def _check_name(self, request: ClearSet | PopSet) -> None:
        check_name("set", request.set)

    def _alter(self, context: WriteContext, request: AlterSet) -> SetAltered:
        """Add and remove members.

        Raises:
            TooLarge: the set would have more than `set_members_max` members.
        """
        rows = context.rows
        add = spelled(request.add)
        remove = [element for element in spelled(request.remove) if orset.contains(rows, element)]
        added = sum(not orset.contains(rows, element) for element in add)
        size = orset.size(rows)
        if added and size + added > self._config.set_members_max:
            raise TooLarge(
                f"set {request.set!r} has {size} members; {self._config.set_members_max} are allowed. Nothing was written. "
                "Remove some, or spread them over several sets."
            )
        if not add and not remove:
            return SetAltered(0, 0, size)
        # An existing element is added again, so that it survives a concurrent removal that saw only the old add.
        change = orset.Alter(
            tuple(orset.named(rows, element) for element in add), tuple(orset.named(rows, element) for element in remove)
        )
        context.apply(change)
        return SetAltered(added, len(remove), orset.size(rows))

    def _clear(self, context: WriteContext, _: ClearSet) -> SetCleared:
        rows, most = context.rows, self._config.page_items_max
        found = list(islice(orset.members(rows), most))
        if found:
            context.apply(orset.Alter(remove=tuple(orset.named(rows, element) for element in found)))
        return SetCleared(len(found), more=orset.size(rows) > 0)

    def _pop(self, context: WriteContext, request: PopSet) -> SetPopped:
        rows = context.rows
        found, _ = self._page(rows, None, request.count)
        if found:
            context.apply(orset.Alter(remove=tuple(orset.named(rows, element) for element in found)))
        return SetPopped(found, orset.size(rows))

    def _read(self, view: View, request: ReadSet) -> SetMembers:
        found, more = self._page(view.rows, request.after or None, request.limit)
        return SetMembers(found, orset.size(view.rows), more)

    def _page(self, rows: Rows, after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
        """The members after one, as many as fit in one answer, and whether there are more."""
        limit = min(max(1, limit), self._config.page_items_max)
        found: list[bytes] = []
        taken = 0
        for element in orset.members(rows, after=after):
            if len(found) == limit or taken >= PAGE_BYTES_MAX:
                return found, True
            found.append(element)
            taken += len(element)
        return found, False

    def _contains(self, view: View, request: ContainsMembers) -> MembersContained:
        check_elements(self._config, request.elements)
        spelled = [values.canonical(element) for element in request.elements]
        return MembersContained([orset.contains(view.rows, element) for element in spelled])


def spelled(elements: Iterable[bytes]) -> list[bytes]:
    """The canonical forms of packed elements, each once."""
    return list(dict.fromkeys(values.canonical(element) for element in elements))


def check_elements(config: Config, elements: list[bytes]) -> None:
    """Check the packed elements that a request names.

    Raises:
        InvalidValue: one is not a valid value.
        TooLarge: there are more than `page_items_max`, one is larger than `SET_ELEMENT_BYTES_MAX`, or all are too large.
    """
    if len(elements) > config.page_items_max:
        raise TooLarge(
            f"one request names at most {config.page_items_max} elements; this one has {len(elements)}. "
            "Nothing was written. Send several requests."
        )
    check_size(config, sum(map(len, elements)), "a request's elements")
    for element in elements:
        values.check(element)
        if len(element) > SET_ELEMENT_BYTES_MAX:
            raise TooLarge(
                f"an element of a set has at most {SET_ELEMENT_BYTES_MAX} bytes; this one has {len(element)}. "
                "Nothing was written. Store larger values elsewhere, and their name or hash in the set."
            )


def handler(config: Config) -> Handler:
    """The handler of this kind, which needs nothing of a node beside its configuration."""
    return Sets(config)
