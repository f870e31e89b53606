"""The listings of docs/PROTOCOL.md: every request, subscription, reply and push as the code has it.

Law: an entry stands where a writer of the page put it. A new message comes after the one that precedes it in its module.
"""

from __future__ import annotations

import re
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from shoal.protocol import requests
from shoal.protocol.base import Maintenance, ObjectRead, ObjectWrite, Read, Reply, Request, Write, reply_of
from shoal.protocol.requests import BatchWrite

PAGE = Path(__file__).parents[2] / "docs" / "PROTOCOL.md"
SCALARS = {str: "str", bytes: "bin", int: "int", float: "float", bool: "bool", type(None): "nil"}
WIDTH = 150
BASES = {Request, Write, ObjectWrite, Read, ObjectRead, Maintenance, Reply}
SUBSCRIBED = ("watch", "follow", "follow-presence")
WIDE = 8  # A union of more messages is shown as "message".


def messages() -> list[type[Struct]]:
    """Every struct of the protocol, in the order of the modules and of their lines."""
    found = {value for value in vars(requests).values() if isinstance(value, type) and issubclass(value, Struct)}
    return sorted(found - BASES, key=_line)


def _line(struct: type[Struct]) -> tuple[str, int]:
    module = struct.__module__
    source = Path(str(__import__(module, fromlist=["_"]).__file__)).read_text()
    return module, source.index(f"\nclass {struct.__name__}(")


def tag_of(struct: type[Struct]) -> str | None:
    tag = struct.__struct_config__.tag
    return tag if isinstance(tag, str) else None


def shown_type(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin is Annotated:
        most = [mark.max_length for mark in parts[1:] if isinstance(mark, msgspec.Meta)]
        return shown_type(parts[0]) + "".join(f"≤{bound}" for bound in most)
    if origin is Literal:
        return "|".join(f'"{value}"' for value in parts)
    if origin in (Union, types.UnionType):
        return "message" if len(parts) > WIDE else "|".join(map(shown_type, parts))
    if origin is tuple:
        return f"[{', '.join(map(shown_type, parts))}]"
    if origin is list:
        return f"[{shown_type(parts[0])}]"
    if origin is dict:
        return f"{{{shown_type(parts[0])}: {shown_type(parts[1])}}}"
    assert isinstance(kind, type), kind
    assert issubclass(kind, Struct), kind
    return tag_of(kind) or kind.__name__


def shown(struct: type[Struct]) -> str:
    hints = get_type_hints(struct, include_extras=True)
    fields = [
        f"{field.name}{'' if field.required else '?'}: {shown_type(hints[field.name])}"
        for field in msgspec.structs.fields(struct)
    ]
    kind = "reply" if issubclass(struct, Reply) else "read" if issubclass(struct, Read) else "write"
    tag = tag_of(struct)
    line = f"{kind if tag else 'part':<5} {tag or struct.__name__}({', '.join(fields)})"
    if issubclass(struct, Request) and tag not in SUBSCRIBED:
        line += f" → {tag_of(reply_of(struct))}"
    return "\n".join(textwrap.wrap(line, WIDTH, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False))


def page() -> str:
    """The page with its listings, and its list of what a batch takes, as the code has them.

    Raises:
        ValueError: a module has messages, and none of them is listed. Its section has to be written first.
    """
    text = PAGE.read_text()
    start, stop = text.index("\n## The requests\n"), text.index("\n## Failures")
    expected = {_named(shown(struct)): shown(struct) for struct in messages()}
    blocks = [re.split(r"\n(?! {8})", block.rstrip("\n")) for block in _BLOCK.findall(text, start, stop)]
    blocks = [[_named(entry) for entry in block if _named(entry) in expected] for block in blocks]
    before, module = "", ""
    for struct in messages():
        name = _named(shown(struct))
        there = next((block for block in blocks if name in block), None)
        if there is None:
            there = next((block for block in blocks if before in block), None) if struct.__module__ == module else None
            if there is None:
                raise ValueError(f"docs/PROTOCOL.md has no section with messages of {struct.__module__}: add one with {name}")
            there.insert(there.index(before) + 1, name)
        before, module = name, struct.__module__
    filled = iter("\n".join(expected[name] for name in block) for block in blocks)
    section = _BLOCK.sub(lambda _: f"```\n{next(filled)}\n```", text[start:stop])
    tags = [f"`{tag_of(struct)}`" for struct in get_args(BatchWrite)]
    section = re.sub(
        r"Allowed are .*?;", lambda _: f"Allowed are {', '.join(tags[:-1])} and {tags[-1]};", section, flags=re.DOTALL
    )
    return text[:start] + section + text[stop:]


def _named(entry: str) -> str:
    """The name of the message that an entry is about."""
    return entry.partition("(")[0].split()[1]


_BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
