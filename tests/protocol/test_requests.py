"""A request that is defined is one that nodes take: each family's is exported, and in the unions."""

from __future__ import annotations

import inspect
import pkgutil
from types import ModuleType
from typing import get_args

import pytest
from msgspec import Struct

from shoal import kinds
from shoal.protocol import base, requests
from shoal.protocol.base import Maintenance, ObjectRead, ObjectWrite, Read, Reply, Request, Write, operation
from shoal.protocol.requests import families
from shoal.protocol.requests.families import FAMILIES

OF_SEVERAL = (base, families)
"""Modules that define what requests share, or requests of requests."""

STRUCTS = {value for value in vars(requests).values() if isinstance(value, type) and issubclass(value, Struct)}
PUSHED = set(get_args(requests.Push)) | {requests.Refused}
"""Replies that answer no request: they are told to who subscribed, or are part of another."""


def test_every_module_of_requests_is_a_family() -> None:
    here = {found.name for found in pkgutil.walk_packages(requests.__path__, f"{requests.__name__}.")}
    below = {found.name for found in pkgutil.walk_packages(kinds.__path__, "shoal.kinds.")}
    of_kinds = {name for name in below if name.split(".")[3:] == ["requests"]}
    listed = {module.__name__ for module in (*FAMILIES, *OF_SEVERAL)}
    assert here | of_kinds | {base.__name__} == listed


@pytest.mark.parametrize("family", [*FAMILIES, *OF_SEVERAL], ids=lambda family: family.__name__)
def test_all_that_a_family_defines_is_exported(family: ModuleType) -> None:
    defined = {name for name, value in vars(family).items() if inspect.isclass(value) and value.__module__ == family.__name__}
    assert {name for name in defined if not name.startswith("_")} <= set(family.__all__)
    assert all(getattr(requests, name) is getattr(family, name) for name in family.__all__)


def test_every_request_is_in_the_union() -> None:
    made = {struct for struct in STRUCTS if issubclass(struct, Request)} - {
        Request,
        Read,
        Write,
        ObjectRead,
        ObjectWrite,
        Maintenance,
    }
    assert set(get_args(requests.AnyRequest)) | set(get_args(requests.Subscription)) == made


def test_every_reply_is_in_the_union() -> None:
    made = {struct for struct in STRUCTS if issubclass(struct, Reply)} - {Reply}
    assert set(get_args(requests.AnyReply)) | PUSHED == made


def test_replies_to_writes_and_reads_are_told_apart() -> None:
    assert set(get_args(requests.AnyWrite)) & set(get_args(requests.AnyRead)) == set()
    assert set(get_args(requests.BatchWrite)) < set(get_args(requests.AnyWrite))


def test_a_request_is_declared_once() -> None:
    with pytest.raises(TypeError, match="DeleteSchema is declared twice"):
        operation(frees=True)(requests.DeleteSchema)


def test_rules_of_a_space_take_the_right_of_an_administrator() -> None:
    rules = (requests.PutSchema, requests.DeleteSchema)
    assert {requests.declaration_of(kind).action for kind in rules} == {"admin"}
