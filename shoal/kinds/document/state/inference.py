"""How an update uses a root, and the kind that follows from it if nobody declared the root.

Law: a standard Yjs client names a root without its kind, so the
first update that uses it must tell. The rule, in this order:

1. if the items without a key hold XML elements or texts and nothing else, the root is XML, even if there are keys:
   these are the attributes of a client for which the root is an XML text;
2. if it has keys, it is a map, even if there are items without a key;
3. if its items hold text, formatting or embedded objects, it is a text;
4. if its items hold values, bytes or shared types, it is an array;
5. if the update shows only deleted items of it, it is a text.

An item that has a neighbour does not name its root; its neighbours lead there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from shoal.kinds.document.state.yjs import ARRAY_CONTENT, DELETED, GC, NODE, TEXT_CONTENT, Parsed, RootKind, Struct

_NOTHING = {GC, DELETED}
_At = tuple[int, int]  # Client, and index among its structs.


def infer(parsed: Parsed, known: Iterable[str]) -> dict[str, RootKind]:
    """The kinds of the roots that an update uses and that are not `known`."""
    unknown = (parsed.keyed | parsed.listed).difference(known)
    contents = _contents(parsed, sorted(unknown & parsed.listed), keyed=False)
    return {name: _kind(contents.get(name, set()), keyed=name in parsed.keyed) for name in sorted(unknown)}


def _kind(listed: set[int], *, keyed: bool) -> RootKind:
    """`listed`: the kinds of content of the items without a key."""
    if NODE in listed and not listed & (TEXT_CONTENT | ARRAY_CONTENT):
        return "xml"
    if keyed:
        return "map"
    if listed & TEXT_CONTENT or not listed & ARRAY_CONTENT:
        return "text"
    return "array"


def brings(parsed: Parsed, root: str, *, keyed: bool) -> bool:
    """Whether an update gives a root more than deleted items, at keys or else without."""
    return bool(_contents(parsed, [root], keyed=keyed)[root] - _NOTHING)


def _contents(parsed: Parsed, names: list[str], *, keyed: bool) -> dict[str, set[int]]:
    """The kinds of content of each root's items, of those at keys or else of the others."""
    contents: dict[str, set[int]] = {name: set() for name in names}
    known: dict[_At, Struct | None] = {}
    clocks = {client: [struct.clock for struct in structs] for client, structs in parsed.structs.items()}
    for client, structs in parsed.structs.items():
        for index, struct in enumerate(structs):
            first = _first((client, index), parsed.structs, clocks, known)
            if first is not None and first.root in contents and first.keyed == keyed:
                contents[first.root].add(struct.content)
    return contents


def _first(
    at: _At, structs: dict[int, list[Struct]], clocks: dict[int, list[int]], known: dict[_At, Struct | None]
) -> Struct | None:
    """The item that names the root of an item, found along its neighbours.

    None if the item is in another item, or its root is not known here.
    """
    path: list[_At] = []
    first: Struct | None = None
    while at not in known:
        known[at] = None  # So the walk ends even if neighbours form a circle.
        path.append(at)
        struct = structs[at[0]][at[1]]
        if struct.root is not None:
            first = struct
            break
        if struct.inside or not struct.needs:
            break
        client, clock = struct.needs[0]
        index = bisect_right(clocks.get(client, ()), clock) - 1
        if index < 0:
            break
        at = client, index
    else:
        first = known[at]
    for passed in path:
        known[passed] = first
    return first
