"""Shared XML: pycrdt's fragments and elements, whose nodes have Python's indices, and whose attributes are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pycrdt
from pycrdt._xml import XmlAttributesView, XmlChildrenView

from shoal.kinds.document.shared.doc import adopted, check_put, owned, shared
from shoal.kinds.document.shared.plain import check_attribute
from shoal.kinds.document.shared.positions import item, place, span

_NODES = "list of nodes"


@shared
class XmlFragment(pycrdt.XmlFragment):
    """A fragment of XML."""

    @property
    def children(self) -> XmlChildrenView:
        """The nodes in it."""
        return Children(self)

    @property
    def parent(self) -> Any:
        """The node that it is in."""
        return parent_of(self)


@shared
class XmlElement(pycrdt.XmlElement):
    """An element of XML."""

    @property
    def children(self) -> XmlChildrenView:
        """The nodes in it."""
        return Children(self)

    @property
    def attributes(self) -> XmlAttributesView:
        """The attributes."""
        return Attributes(self)

    @property
    def parent(self) -> Any:
        """The node that it is in."""
        return parent_of(self)


class Children(XmlChildrenView):
    """The nodes of an element or a fragment, as a list."""

    def __getitem__(self, index: int) -> Any:
        with self.inner.doc.transaction() as transaction:
            at = item(index, len(self), _NODES)
            return owned(self.inner.doc, self.inner.integrated.get(transaction._txn, at))

    def __iter__(self) -> Iterator[Any]:
        with self.inner.doc.transaction() as transaction:
            found = self.inner.integrated.children(transaction._txn)
        return iter([owned(self.inner.doc, each) for each in found])

    def __delitem__(self, key: Any) -> None:
        with self.inner.doc.transaction():
            length = len(self)
            if isinstance(key, slice):
                start, stop = span(key, length, _NODES)
            else:
                start = item(key, length, _NODES)
                stop = start + 1
            if start < stop:
                super().__delitem__(slice(start, stop))

    def __setitem__(self, key: int, value: Any) -> None:
        with self.inner.doc.transaction():
            at = item(key, len(self), _NODES)
            node = check_put(value, "XML")
            del self[at]
            self.insert(at, node)

    def insert(self, index: int, element: Any) -> Any:
        """Insert a node, or a string as a text, before the node at `index`, or at the end, and return it.

        Raises:
            IndexError, TypeError: there is no such place.
            InvalidValue: it is no node, or a document cannot hold it.
        """
        with self.inner.doc.transaction():
            return adopted(super().insert(place(index, len(self), _NODES), check_put(element, "XML")))


class Attributes(XmlAttributesView):
    """The attributes of an element or a text, as a dict."""

    def __setitem__(self, key: str, value: Any) -> None:
        check_attribute(key, value)
        super().__setitem__(key, value)


def parent_of(node: Any) -> Any:
    """The node that another is in, or None."""
    return owned(node.doc, node.integrated.parent())
