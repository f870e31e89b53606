"""LangGraph's ids as Shoal's names, and back.

Laws:
- LangGraph's ids are arbitrary text, Shoal's names are not: illegal characters and `%` are
  percent-encoded. Different ids have different names, and each name gives its id back.
- A checkpoint's label is its namespace, `/`, its id, with no other `/` in the first part: a
  namespace's labels are those with one prefix, and lie in the order of their ids (those
  of LangGraph sort by time).
- An id that is too long for a name is rejected where names are checked; it is never cut.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_UNSAFE = re.compile("[%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSAFE_OR_SLASH = re.compile("[%/\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ENCODED = re.compile("(?:%[0-9a-f]{2})+")
_WHOLE = {"": "%", ".": "%2e", "..": "%2e%2e"}
_ROOT_BRANCH = "main"


class Place(NamedTuple):
    """A namespace of a LangGraph thread."""

    thread_id: str
    namespace: str


@lru_cache(maxsize=4096)
def name_of(id: str) -> str:
    """The name of a thread or channel."""
    return _WHOLE.get(id) or _UNSAFE.sub(_percent, id)


def id_of(name: str) -> str:
    """The id of `name_of`."""
    return "" if name == "%" else _ENCODED.sub(_text, name)


@lru_cache(maxsize=4096)
def branch_of(namespace: str) -> str:
    """The branch of a namespace. The root's is Shoal's default branch, so that commands show it by default."""
    if not namespace:
        return _ROOT_BRANCH
    return f"%{namespace}" if namespace == _ROOT_BRANCH else name_of(namespace)


@lru_cache(maxsize=4096)
def prefix_of(namespace: str) -> str:
    """The prefix of the labels of a namespace's checkpoints."""
    return _UNSAFE_OR_SLASH.sub(_percent, namespace) + "/"


def label_of(namespace: str, checkpoint_id: str) -> str:
    """The label of a checkpoint."""
    return prefix_of(namespace) + _UNSAFE.sub(_percent, checkpoint_id)


def split_label(label: str) -> tuple[str, str] | None:
    """The namespace and the checkpoint id; None for a label that the saver did not write."""
    namespace, slash, id = label.partition("/")
    return (_ENCODED.sub(_text, namespace), _ENCODED.sub(_text, id)) if slash else None


def _percent(match: re.Match[str]) -> str:
    # A lone surrogate has no UTF-8 form; it is encoded and decoded as if it had one.
    return "".join(f"%{byte:02x}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _text(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogatepass")
