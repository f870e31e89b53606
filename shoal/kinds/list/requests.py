"""Lists: values in one order on every node. An element keeps its id wherever it is moved."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.base import (
    Cli,
    Cursor,
    Deleted,
    Elements,
    Http,
    ObjectRead,
    ObjectWrite,
    Positive,
    Reply,
    Value,
    always,
    deletion,
    operation,
)

__all__ = [
    "DeleteList",
    "ElementMoved",
    "ElementsInserted",
    "ElementsRemoved",
    "InsertElements",
    "ListElement",
    "ListPage",
    "MoveElement",
    "ReadList",
    "RemoveElements",
]


@operation(
    discloses=True,
    batch=True,
    weighs=lambda request: 4096 * len(request.values),  # What an element takes, whatever its size.
    http=Http(
        "POST",
        "/lists/{list}",
        "Insert values into a list",
        ops=("insert-elements",),
        example={"values": ["write tests"], "index": 0},
    ),
    cli=(
        Cli(
            "list push",
            """shoal list push plan '"write tests"' --data ./state""",
            shows="elements",
            help="Add values at the end of a list, and print the ids of their elements.",
            hides=("index", "before_id", "after_id"),
        ),
        Cli("list insert", """shoal list insert plan '"write tests"' --index 0 --data ./state""", shows="elements"),
    ),
)
class InsertElements(ObjectWrite["ElementsInserted"], array_like=True, frozen=True, tag="insert-elements"):
    """Insert values into a list, one after the other: before an index, before or after an element, or else at the end.

    What two nodes insert at one place is all there, in the same order everywhere; the values of one request stand together.
    """

    list: str
    values: Elements[Value]  # In the order that they get in the list.
    index: int | None = None  # Of the first value in the list; below 0 it counts from the end.
    before_id: str = ""  # The id of an element.
    after_id: str = ""  # The id of an element.


class ElementsInserted(Reply, array_like=True, frozen=True, tag="elements-inserted"):
    """The elements that an insert made."""

    elements: list[str]  # Their ids, in the order of the values.
    size: int  # The number of elements now.


@operation(
    removes=always,
    frees=True,
    discloses=True,
    batch=True,
    http=Http(
        "POST",
        "/lists/{list}/remove",
        "Remove elements of a list, and return their values",
        ops=("remove-elements",),
        example={"elements": ["0" * 36]},
    ),
    cli=Cli(
        "list remove",
        "shoal list remove plan 5e1f66fd2f1c8e1e6d6a4c5a0b9d3f2a0000 --data ./state",
        shows="values",
        help="Remove elements of a list by their ids, and print their values.",
    ),
)
class RemoveElements(ObjectWrite["ElementsRemoved"], array_like=True, frozen=True, tag="remove-elements"):
    """Remove elements by their ids, wherever they stand by now. Ids that the serving node does not show are passed over."""

    list: str
    elements: Elements[str]


class ElementsRemoved(Reply, array_like=True, frozen=True, tag="elements-removed"):
    """The values that were removed."""

    values: list[Value]  # In the order of the request; fewer if some elements were not there.
    size: int  # The number of elements that are left.


@operation(
    batch=True,
    http=Http(
        "POST",
        "/lists/{list}/move",
        "Move an element of a list",
        ops=("move-element",),
        example={"element": "0" * 36, "index": 0},
    ),
    cli=Cli("list move", "shoal list move plan 5e1f66fd2f1c8e1e6d6a4c5a0b9d3f2a0000 --index 0 --data ./state", shows="moved"),
)
class MoveElement(ObjectWrite["ElementMoved"], array_like=True, frozen=True, tag="move-element"):
    """Move an element: to an index, before or after another element, or else to the end. It keeps its id.

    An element that two nodes move at once is at one of the two places, the same everywhere. One that is removed meanwhile
    stays removed.
    """

    list: str
    element: str  # Its id.
    index: int | None = None  # That it has afterwards; below 0 it counts from the end: -1 is the last.
    before_id: str = ""  # The id of another element.
    after_id: str = ""  # The id of another element.


class ElementMoved(Reply, array_like=True, frozen=True, tag="element-moved"):
    """Whether there was such an element."""

    moved: bool  # False if the serving node shows no such element.


@operation(
    multi_read=True,
    http=Http("GET", "/lists/{list}", "A page of a list's elements", ops=("list",)),
    cli=Cli("list get", "shoal list get plan --data ./state", rows="elements", help="List a list's elements."),
)
class ReadList(ObjectRead["ListPage"], array_like=True, frozen=True, tag="read-list"):
    """Read a page of a list. A list that does not exist is empty."""

    list: str
    index: int = 0  # Where the page begins; below 0 it counts from the end.
    after: Cursor = b""  # The cursor of the previous page, in place of an index.
    limit: Positive = 1000


class ListElement(Struct, array_like=True, frozen=True):
    """An element of a list."""

    id: str  # 36 hex digits; it stays when the element is moved.
    value: Value


class ListPage(Reply, array_like=True, frozen=True, tag="list-page"):
    """A page of a list."""

    elements: list[ListElement]
    size: int  # The number of elements of the whole list.
    more: bool  # Ask again with `after`.
    cursor: Cursor = b""  # Where the next page begins, as `after`; empty if this page is.


@deletion("list", "plan")
class DeleteList(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-list"):
    """Delete a list with all its elements."""

    list: str
