"""Make a mirror's engine document anew, because an update cuts a character that it holds whole.

Laws:
- The new document holds the same updates, under the same client id, with U+FFFD for each half of what is cut: see
  `shoal.kinds.document.state.surrogates`. It happens between transactions, before the update is applied.
- Roots that users hold lead to the new document, and their observers observe that. Parts within them lead to the old one,
  which nobody sees any more: using one raises an error that says to take it from its root again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

import pycrdt

from shoal.errors import InvalidInput
from shoal.kinds.document.shared.doc import Doc, move
from shoal.kinds.document.state.content import open_root
from shoal.kinds.document.state.diff_mirror import Difference
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.surrogates import Cut, rewritten


def remade(doc: pycrdt.Doc[Any], cut: Collection[Cut]) -> Doc | None:
    """The document with these pairs replaced; None if all of them are deleted."""
    snapshot = doc.get_update()
    wanted = rewritten(snapshot, cut)
    if wanted is snapshot:
        return None
    made = Doc(client_id=doc.client_id)
    made.apply_update(wanted)
    return made


def move_all(roots: Mapping[str, Any], kinds: Mapping[str, RootKind], old: pycrdt.Doc[Any], new: pycrdt.Doc[Any]) -> None:
    """Let roots that are held lead to the new document, and the old one raise."""
    for subscription in list(old._subscriptions):
        old.unobserve(subscription)
    for name, root in roots.items():
        move(root, open_root(new, name, kinds[name]))
    old.transaction = _raise_moved  # type: ignore[method-assign]


def replaced(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[Difference]:
    """The texts that differ between two shown contents of one shape, each `set` as a whole."""
    if isinstance(before, dict) and isinstance(after, dict) and "text" not in before:
        for key in before:
            yield from replaced(before[key], after[key], (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from replaced(old, new, (*path, index))
    elif before != after:
        yield Difference("set", path, before, after)


def _raise_moved(origin: Any = None) -> NoReturn:
    raise InvalidInput(
        "another editor has cut a character of this document in two, and its content was made anew. Nothing was written. "
        "Take this part of the document from its root again."
    )
