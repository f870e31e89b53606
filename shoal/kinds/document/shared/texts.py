"""Shared texts and texts of XML: pycrdt's, with positions in characters.

Laws:
- All positions that these classes take and give are characters, embedded objects counting as one each; `len` agrees. An
  embedded object shows as U+FFFC in an item or a slice, and `str` leaves it out.
- Each request to the engine is checked first, so that it either does all of it or nothing.

Shared XML: pycrdt's fragments and elements, whose nodes have Python's indices, and whose attributes are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pycrdt
from pycrdt._xml import XmlAttributesView, XmlChildrenView

from shoal.errors import InvalidValue
from shoal.kinds.document.shared.doc import Doc, adopted, check_put, owned, shared
from shoal.kinds.document.shared.plain import Where, check_attribute, check_formats, check_string
from shoal.kinds.document.shared.positions import HELD, Layout, characters, index_of, item, packed, place, span, stuck
from shoal.records import NamedTuple

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


_TEXT = "text"


@shared
class Text(pycrdt.Text):
    """A shared text."""

    def __len__(self) -> int:
        return len(_layout(self))

    def __getitem__(self, key: Any) -> str:
        layout = _layout(self)
        return layout[key if isinstance(key, slice) else item(key, len(layout), _TEXT)]

    def __setitem__(self, key: Any, value: str) -> None:
        check_string(value)
        with self.doc.transaction():
            start, stop = _span(self, key)
            if not isinstance(key, slice) and len(value) != 1:
                raise ValueError(f"one character takes the place of one, not {len(value)}. Nothing was written. Use a slice.")
            del self[start:stop]
            self.insert(start, value)

    def __delitem__(self, key: Any) -> None:
        with self.doc.transaction():
            layout, (start, stop) = _layout(self), _span(self, key)
            if start < stop:
                at = layout.at(start)
                super().__delitem__(slice(at, at + layout.size(start, stop)))
                _followed(self, layout, start, stop, "")

    def __iadd__(self, value: str) -> Text:
        check_string(value)
        with self.doc.transaction():
            layout = _known(self)
            super().insert(_size(self), value)  # Where the end is, the engine knows.
            if layout is not None:
                _followed(self, layout, len(layout), len(layout), value)
        return self

    def insert(self, index: int, value: str, attrs: Any = None) -> None:
        """Insert a string before the character at `index`, or at the end.

        Raises:
            IndexError, TypeError: there is no such place, or it is no string.
            InvalidValue: a document cannot hold the value or the formats.
        """
        check_string(value)
        check_formats(attrs)
        with self.doc.transaction():
            layout, start = _layout(self), _place(self, index)
            super().insert(layout.at(start), value, attrs)
            _followed(self, layout, start, start, value)

    def insert_embed(self, index: int, value: Any, attrs: Any = None) -> None:
        """Embed an object, a shared type or JSON, before the character at `index`, or at the end. Raises as `insert`."""
        embedded = _checked_embedded(value, attrs, "text")
        with self.doc.transaction():
            layout, start = _layout(self), _place(self, index)
            super().insert_embed(layout.at(start), embedded, attrs)
            _followed(self, layout, start, start, HELD)

    def format(self, start: int, stop: int, attrs: Any) -> None:
        """Set formats of the characters of a slice; None removes one. Raises as `insert`."""
        check_formats(attrs)
        with self.doc.transaction():
            layout, (start, stop) = _layout(self), _span(self, slice(start, stop))
            at = layout.at(start)
            super().format(at, at + layout.size(start, stop), attrs)
            _followed(self, layout, start, start, "")

    def sticky_index(self, index: int, assoc: pycrdt.Assoc = pycrdt.Assoc.AFTER) -> pycrdt.StickyIndex:
        """An index that stays at its character, whatever is edited; `index_of` tells where it is.

        The end of a text has nothing after it: use `Assoc.BEFORE` there. Raises as `insert`.
        """
        with self.doc.transaction():
            return stuck(self, _layout(self), index, assoc)

    def index_of(self, sticky_index: pycrdt.StickyIndex) -> int:
        """Where an index sticks now, also one that pycrdt decoded, whose own `get_index` would count otherwise.

        Raises:
            InvalidValue: it sticks to a character that this document does not hold.
        """
        with self.doc.transaction():
            return index_of(self, _layout(self), sticky_index)

    def _recounting(self) -> Callable[[Any], None]:
        return _Recounting(self)


@shared
class XmlText(pycrdt.XmlText):
    """A text of XML."""

    def __len__(self) -> int:
        return len(_layout(self))

    def __getitem__(self, key: Any) -> str:
        layout = _layout(self)
        return layout[key if isinstance(key, slice) else item(key, len(layout), _TEXT)]

    def __delitem__(self, key: Any) -> None:
        with self.doc.transaction():
            layout, (start, stop) = _layout(self), _span(self, key)
            if start < stop:
                at = layout.at(start)
                super().__delitem__(slice(at, at + layout.size(start, stop)))
                _followed(self, layout, start, stop, "")

    def __iadd__(self, value: str) -> XmlText:
        check_string(value)
        with self.doc.transaction():
            layout = _known(self)
            super().insert(_size(self), value)
            if layout is not None:
                _followed(self, layout, len(layout), len(layout), value)
        return self

    def insert(self, index: int, value: str, attrs: Any = None) -> None:
        """As `Text.insert`."""
        check_string(value)
        check_formats(attrs)
        with self.doc.transaction():
            layout, start = _layout(self), _place(self, index)
            super().insert(layout.at(start), value, attrs)
            _followed(self, layout, start, start, value)

    def insert_embed(self, index: int, value: Any, attrs: Any = None) -> None:
        """As `Text.insert_embed`."""
        embedded = _checked_embedded(value, attrs, "XML text")
        with self.doc.transaction():
            layout, start = _layout(self), _place(self, index)
            super().insert_embed(layout.at(start), embedded, attrs)
            _followed(self, layout, start, start, HELD)

    def format(self, start: int, stop: int, attrs: Any) -> None:
        """As `Text.format`."""
        check_formats(attrs)
        with self.doc.transaction():
            layout, (start, stop) = _layout(self), _span(self, slice(start, stop))
            at = layout.at(start)
            super().format(at, at + layout.size(start, stop), attrs)
            _followed(self, layout, start, start, "")

    @property
    def attributes(self) -> Attributes:
        """The attributes."""
        return Attributes(self)

    @property
    def parent(self) -> Any:
        """The node that this text is in."""
        return parent_of(self)

    def _recounting(self) -> Callable[[Any], None]:
        return _Recounting(self)


Either = Text | XmlText


def _size(text: Either) -> int:
    """The length as the engine counts it."""
    with text.doc.transaction() as transaction:
        size: int = text.integrated.len(transaction._txn)
        return size


class _Known(NamedTuple):
    """The layout of a text as it was at an edition of its document; the engine's text may have become another."""

    integrated: Any
    edition: int
    layout: Layout


def _known(text: Either) -> Layout | None:
    """The layout of a text, if nothing has changed in its document since it was remembered."""
    known: _Known | None = getattr(text, "_known", None)
    doc = text.doc
    if known is None or not isinstance(doc, Doc) or known.integrated is not text.integrated or known.edition != doc.edition:
        return None
    return known.layout


def _followed(text: Either, layout: Layout, start: int, stop: int, new: str) -> None:
    """Remember the layout of a text after an edit of its own: to read a long text again would take longer than the edit."""
    layout.edited(start, stop, new)
    _remember(text, layout)


def _remember(text: Either, layout: Layout) -> None:
    if isinstance(text.doc, Doc):
        text._known = _Known(text.integrated, text.doc.edition, layout)  # type: ignore[union-attr]


def _layout(text: Either) -> Layout:
    """
    Raises:
        InvalidValue: another client put content into the text that does not belong there.
    """
    with text.doc.transaction():
        layout = _known(text)
        if layout is None:
            layout = _read(text)
            _remember(text, layout)
        return layout


def _read(text: Either) -> Layout:
    with text.doc.transaction() as transaction:
        size = text.integrated.len(transaction._txn)
        written = text.integrated.get_string(transaction._txn)
        if (len(written) if written.isascii() else len(written.encode())) == size:
            return Layout(written)
        found = packed(chunk for chunk, _ in text.integrated.diff(transaction._txn))
        if len(found) != size:
            raise InvalidValue(
                "another client put content into this text that does not belong there and that nobody is shown, so it has no "
                "positions. Nothing was written."
            )
        return Layout(found)


def _place(text: Either, index: Any) -> int:
    return place(index, len(_layout(text)), _TEXT)


def _span(text: Either, key: Any) -> tuple[int, int]:
    length = len(_layout(text))
    if isinstance(key, slice):
        return span(key, length, _TEXT)
    at = item(key, length, _TEXT)
    return at, at + 1


def _checked_embedded(value: Any, formats: Any, where: Where) -> Any:
    check_formats(formats)
    return check_put(value, where)


class _Recounting:
    """Turns the positions in the events of one text into characters. It needs the text as it was before each."""

    def __init__(self, text: Either) -> None:
        self._before = bytearray(packed(chunk for chunk, _ in text.diff()))

    def __call__(self, event: Any) -> None:
        text, at = self._before, 0
        for step in event.delta:
            if "retain" in step:
                size = step["retain"]
                step["retain"] = characters(text[at : at + size])
                at += size
            elif "delete" in step:
                size = step["delete"]
                step["delete"] = characters(text[at : at + size])
                del text[at : at + size]
            else:
                new = packed([step["insert"]])
                text[at:at] = new
                at += len(new)
