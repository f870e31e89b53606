"""LangGraph's ids as Shoal's names, and back.

Laws, beside those of `escaping`:
- A checkpoint's label is its namespace, `/`, its id, with no other `/` in the first part: a
  namespace's labels are those with one prefix, and lie in the order of their ids (those
  of LangGraph sort by time).
"""

from __future__ import annotations

from functools import lru_cache

from shoal.integrations import escaping
from shoal.integrations.escaping import escaped, unescaped, unsafe
from shoal.records import NamedTuple

_UNSAFE = unsafe()
_UNSAFE_OR_SLASH = unsafe("/")
_ROOT_BRANCH = "main"
CALL = ":"
"""The text before the id of a call in LangGraph's namespaces: `node:id|inner:id`. No name of a node holds it."""


class Place(NamedTuple):
    """A namespace of a LangGraph thread."""

    thread_id: str
    namespace: str


@lru_cache(maxsize=4096)
def name_of(id: str) -> str:
    """The name of a thread or channel."""
    return escaping.name_of(id, _UNSAFE)


def id_of(name: str) -> str:
    """The id of `name_of`."""
    return escaping.id_of(name)


@lru_cache(maxsize=4096)
def branch_of(namespace: str) -> str:
    """The branch that a namespace's checkpoints name. The root's is Shoal's default branch, so that commands show it.

    Of other namespaces there is no branch, unless an earlier version made it.
    """
    if not namespace:
        return _ROOT_BRANCH
    return f"%{namespace}" if namespace == _ROOT_BRANCH else name_of(namespace)


@lru_cache(maxsize=4096)
def prefix_of(namespace: str) -> str:
    """The prefix of the labels of a namespace's checkpoints."""
    return escaped(namespace, _UNSAFE_OR_SLASH) + "/"


def label_of(namespace: str, checkpoint_id: str) -> str:
    """The label of a checkpoint."""
    return prefix_of(namespace) + escaped(checkpoint_id, _UNSAFE)


def split_label(label: str) -> tuple[str, str] | None:
    """The namespace and the checkpoint id; None for a label that the saver did not write."""
    namespace, slash, id = label.partition("/")
    return (unescaped(namespace), unescaped(id)) if slash else None
