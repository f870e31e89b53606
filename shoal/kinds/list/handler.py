"""Lists over storage: where elements are put, and pages of them.

Law: an element is put between two neighbours that this node shows, with nothing between them.
"""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, NotFound, TooLarge, Unsupported
from shoal.kinds.list import state as lists
from shoal.kinds.list.requests import (
    ElementMoved,
    ElementsInserted,
    ElementsRemoved,
    InsertElements,
    ListElement,
    ListPage,
    MoveElement,
    ReadList,
    RemoveElements,
)
from shoal.names import check_name
from shoal.node.handler import Checks, Handler, Readers, View, WriteContext, Writers
from shoal.node.naming import PAGE_BYTES_MAX, check_size

LIST_ELEMENTS_MAX = 100_000  # Of one list: so many are counted in some milliseconds.
LIST_VALUE_BYTES_MAX = 64 * 1024  # The value of one element.

_Gap = tuple[bytes | None, bytes | None]  # Two neighbours; None is an end of the list.


class Lists:
    """The handler of lists."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {
            InsertElements: self._check_insert,
            MoveElement: self._check_move,
            RemoveElements: self._check_remove,
        }
        self.writers: Writers = {InsertElements: self._insert, MoveElement: self._move, RemoveElements: self._remove}
        self.readers: Readers = {ReadList: self._read}

    def _check_insert(self, request: InsertElements) -> None:
        _check_place(request)
        self._check_number(len(request.values))
        if not request.values:
            raise InvalidInput("an insert into a list has at least one value; this one has none. Nothing was written.")
        check_size(self._config, sum(map(len, request.values)), "the values of a request")
        for value in request.values:
            values.check(value)
            if len(value) > LIST_VALUE_BYTES_MAX:
                raise TooLarge(
                    f"a value in a list has at most {LIST_VALUE_BYTES_MAX} bytes; this one has {len(value)}. "
                    "Nothing was written. Store larger values elsewhere, and their names in the list."
                )

    def _check_move(self, request: MoveElement) -> None:
        _check_place(request)
        _id(request.element)

    def _check_remove(self, request: RemoveElements) -> None:
        check_name("list", request.list)
        self._check_number(len(request.elements))
        for each in request.elements:
            _id(each)

    def _check_number(self, number: int) -> None:
        if number > self._config.page_items_max:
            raise TooLarge(
                f"one request names at most {self._config.page_items_max} elements; this one has {number}. "
                "Nothing was written. Send several requests."
            )

    def _insert(self, context: WriteContext, request: InsertElements) -> ElementsInserted:
        """Insert elements.

        Raises:
            NotFound: the element to insert before or after is not shown.
            TooLarge: the list would have more than `LIST_ELEMENTS_MAX` elements, or there is no room at this place.
        """
        rows = context.rows
        size, count = lists.size(rows), len(request.values)
        if size + count > LIST_ELEMENTS_MAX:
            raise TooLarge(
                f"list {request.list!r} has {size} elements; {LIST_ELEMENTS_MAX} are allowed. Nothing was written. "
                "Remove some, or spread them over several lists."
            )
        stamp, key = context.stamp, context.implied_key
        if context.imported is not None and lists.find(rows, lists.id_of(stamp, key, 0)) is not None:
            return ElementsInserted([lists.id_of(stamp, key, nth).hex() for nth in range(count)], size)
        gap = _anchored(rows, request, None) if request.index is None else _gap_at(rows, _from_start(request.index, size))
        place = lists.between(*gap, stamp, count)
        _apply(context, place, lists.Insert(place, tuple(map(values.canonical, request.values)), key))
        return ElementsInserted([lists.id_of(stamp, key, nth).hex() for nth in range(count)], lists.size(rows))

    def _move(self, context: WriteContext, request: MoveElement) -> ElementMoved:
        """Move an element; one that is where it should be stays without a write.

        Raises:
            NotFound: the element to move it before or after is not shown.
            TooLarge: there is no room at this place.
        """
        rows = context.rows
        element = lists.find(rows, _id(request.element))
        if element is None:
            return ElementMoved(moved=False)
        own = element.path
        if request.index is None:
            gap = _anchored(rows, request, own)
        else:
            size, at = lists.size(rows), lists.index_of(rows, own)
            index = min(_from_start(request.index, size), size - 1)
            gap = _gap_at(rows, index + (index > at))  # Among the elements that are there while it still is.
        if own not in gap:
            place = lists.between(*gap, context.stamp)
            _apply(context, place, lists.Move(lists.named(rows, element.id), place))
        return ElementMoved(moved=True)

    def _remove(self, context: WriteContext, request: RemoveElements) -> ElementsRemoved:
        rows = context.rows
        found = [element for id in dict.fromkeys(map(_id, request.elements)) if (element := lists.find(rows, id))]
        if found:
            context.apply(lists.Remove(tuple(lists.named(rows, element.id) for element in found)))
        return ElementsRemoved([element.value for element in found], lists.size(rows))

    def _read(self, view: View, request: ReadList) -> ListPage:
        rows = view.rows
        size, after = lists.size(rows), request.after or None
        if after is None and request.index:
            after = _gap_at(rows, _from_start(request.index, size))[0]
        limit = min(max(1, request.limit), self._config.page_items_max)
        found: list[ListElement] = []
        taken, last = 0, b""
        for path, id, value in lists.elements(rows, after=after):
            if len(found) == limit or taken >= PAGE_BYTES_MAX:
                return ListPage(found, size, more=True, cursor=last)
            found.append(ListElement(id.hex(), value))
            taken, last = taken + len(value), path
        return ListPage(found, size, more=False, cursor=last)


def _check_place(request: InsertElements | MoveElement) -> None:
    check_name("list", request.list)
    if (request.index is not None) + bool(request.before_id) + bool(request.after_id) > 1:
        raise InvalidInput(
            "a place in a list is an index, or before an element, or after one, and no two of these. Nothing was written."
        )
    for each in (request.before_id, request.after_id):
        if each:
            _id(each)


def _id(shown: str) -> bytes:
    """The id of an element, which requests carry as text.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = bytes.fromhex(shown)
    except ValueError:
        found = b""
    if len(found) != lists.ID_BYTES or found.hex() != shown:
        raise InvalidInput(
            f"the id of an element of a list has {2 * lists.ID_BYTES} hex digits; got {shown!r:.80}. Nothing was written."
        )
    return found


def _from_start(index: int, size: int) -> int:
    """An index from 0 up to the size; as in Python, one below 0 counts from the end, and one beyond it is the end."""
    return max(0, size + index) if index < 0 else min(index, size)


def _gap_at(rows: Rows, index: int) -> _Gap:
    """The neighbours of what is put at an index."""
    right = lists.element_at(rows, index)
    if right is None:
        return lists.end(rows), None
    return lists.neighbour(rows, right.path, before=True), right.path


def _anchored(rows: Rows, request: InsertElements | MoveElement, own: bytes | None) -> _Gap:
    """The neighbours of what is put before an element, after one, or at the end."""
    anchor = request.before_id or request.after_id
    if not anchor:
        return lists.end(rows), None
    found = lists.find(rows, _id(anchor))
    if found is None:
        raise NotFound(
            f"list {request.list!r} shows no element {anchor}: it was removed, or this node has not heard of it yet. "
            "Nothing was written. Read the list, and name another place."
        )
    if found.path == own:
        return own, own
    other = lists.neighbour(rows, found.path, before=bool(request.before_id))
    return (other, found.path) if request.before_id else (found.path, other)


def _apply(context: WriteContext, place: lists.Place, change: lists.Change) -> None:
    """Apply a change that puts something at a place.

    Raises:
        TooLarge: elements were put between two neighbours again and again, until no path leads between them.
        Unsupported: a peer of an older version knows no lists.
    """
    if not lists.is_place(place):
        raise TooLarge(
            "too many elements were put between the same two, one inside the other, so no position is left there. "
            "Nothing was written. Insert at another place, or move one of the two away and back."
        )
    if not context.is_known_to_peers(change):
        raise Unsupported(
            "a node of this cluster runs a version that knows no lists. Nothing was written. Update all nodes first."
        )
    context.apply(change)


def handler(config: Config) -> Handler:
    """The handler of this kind, which needs nothing of a node beside its configuration."""
    return Lists(config)
