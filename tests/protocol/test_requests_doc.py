"""docs/PROTOCOL.md lists every request, subscription, reply and push as the code has it."""

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
from shoal.protocol.frames import PROTOCOL, Hello, encode_hello
from shoal.protocol.requests import BatchWrite

TEXT = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text()
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


def listed() -> list[str]:
    """The entries of the page's listings."""
    section = TEXT[TEXT.index("\n## The requests\n") : TEXT.index("\n## Failures")]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [entry for block in blocks for entry in re.split(r"\n(?! {8})", block.rstrip("\n"))]


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


def test_each_message_is_listed_once_as_it_is() -> None:
    assert sorted(listed()) == sorted(map(shown, messages()))


def test_writes_that_a_batch_takes_are_listed() -> None:
    sentence = re.search(r"Allowed are (.*?);", TEXT, re.DOTALL)
    assert sentence is not None
    assert re.findall(r"`([\w-]+)`", sentence[1]) == [tag_of(struct) for struct in get_args(BatchWrite)]


def test_the_version_is_the_one_that_is_spoken() -> None:
    assert f"# The session protocol, version {PROTOCOL}\n" in TEXT
    assert f"\n`protocol` is {PROTOCOL}. A node" in TEXT
    assert f"`{encode_hello(Hello(PROTOCOL, 'x')).hex(' ')}`" in TEXT.replace("68656c6c6f", "68 65 6c 6c 6f")
